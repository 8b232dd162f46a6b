"""Words added to a vocabulary: one piece each, slots first, all other words as before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.runtime.errors import InputError
from bert_jax.text.training import add_words
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab, write_vocab
from bert_jax.text.wordpiece import WordPieceTokenizer, basic_tokens

# Every letter is covered, as in published vocabularies, so nothing becomes [UNK].
TOKENS = [
    "[PAD]", "[unused0]", "[unused1]", *SPECIAL_TOKENS[1:], *"abcdeé", "ab", "cab",
    *("##" + x for x in ("a", "b", "c", "d", "e", "é", "ab", "de")), "A", "##A", ".", "-",
]  # fmt: skip
WORDS = st.text("abcdeéA", min_size=1, max_size=6)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("added")
    write_vocab(folder / "vocab.txt", TOKENS)
    return folder / "vocab.txt", folder / "words.txt"


def added(files, words, lowercase=True):
    """(tokens, notes) for these lines of a file of words."""
    files[1].write_text("\n".join(words), encoding="utf-8")
    return add_words(*files, lowercase)


@given(st.lists(WORDS, min_size=1, max_size=6), st.lists(WORDS, max_size=12), st.booleans())
def test_added_words_are_one_piece_and_others_keep_theirs(files, words, others, lowercase):
    tokens, _ = added(files, words, lowercase)
    before = WordPieceTokenizer(Vocab.from_tokens(TOKENS), lowercase)
    after = WordPieceTokenizer(Vocab.from_tokens(tokens), lowercase)
    new = {token for word in words for token in basic_tokens(word, lowercase)}
    for text in [*words, *others, " ".join(others) + ". " + "-".join(words)]:
        for word in basic_tokens(text, lowercase):
            pieces = after.tokenize(word)
            if word in new:
                assert pieces == [word]
            elif not word.startswith(tuple(new - set(TOKENS))):
                assert pieces == before.tokenize(word)
            else:  # greedy: it begins with an added word
                assert "".join(piece.removeprefix("##") for piece in pieces) == word


def test_unused_slots_come_first_then_new_lines(files):
    tokens, notes = added(files, ["Dada", "", "  bead ", "ab", "cede", "déda", "dada"])
    assert tokens[:3] == ["[PAD]", "dada", "bead"]
    assert tokens[3:-2] == TOKENS[3:] and tokens[-2:] == ["cede", "deda"]
    assert notes == [
        f"{files[1]}: named twice: dada", f"{files[1]}: in {files[0]} already: ab",
        f"4 words added to the vocabulary, 2 of them in [unused] slots: {len(tokens)} tokens",
    ]  # fmt: skip


def test_a_cased_vocabulary_keeps_case_and_accents(files):
    tokens, _ = added(files, ["Dada", "déda", "dada"], lowercase=False)
    assert (tokens[1], tokens[2], tokens[-1]) == ("Dada", "déda", "dada")


def test_a_vocabulary_that_has_all_words_stays(files, tmp_path):
    tokens, _ = added(files, ["dada", "bead", "cede"])
    write_vocab(tmp_path / "vocab.txt", tokens)
    again, notes = add_words(tmp_path / "vocab.txt", files[1], True)
    assert again == tokens and len(notes) == 1 and "already: dada, bead, cede" in notes[0]


@pytest.mark.parametrize("content, message", [
    ("dada\nnew york\n", r"words.txt: line 2 is 'new york', which BERT splits into 2 words"),
    ("covid-19", "line 1 is 'covid-19', which BERT splits into 3 words"),
    ("##bea", "splits into 3 words"),
    ("[unused7]", "splits into 3 words"),
    ("a\u6771b", "splits into 3 words"),
    ("ok\n\u0301\n", "line 2 is .* splits into 0 words"),
    ("d" * 101, "line 1 has 101 characters"),
    ("\n \n", "is empty"),
    ("a\0b", "not a text file"),
])  # fmt: skip
def test_what_is_not_one_word_is_refused_with_its_line(files, content, message):
    with pytest.raises(InputError, match=message) as error:
        added(files, content.split("\n"))
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_used(files, tmp_path):
    with pytest.raises(InputError, match="no such words file; check config.data.add_tokens"):
        add_words(files[0], tmp_path / "none.txt", True)
    with pytest.raises(InputError, match="is a SentencePiece model, to which words cannot be"):
        add_words(tmp_path / "spiece.model", files[1], True)
    (tmp_path / "latin.txt").write_bytes("dada\ndéda".encode("latin-1"))
    with pytest.raises(InputError, match="line 2 is not UTF-8"):
        add_words(files[0], tmp_path / "latin.txt", True)
