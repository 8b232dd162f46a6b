"""Vocabularies trained on small text: their shape, their coverage, and how well they compress."""

import gzip
import importlib.util

import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.text import training
from bert_jax.text.training import train_wordpiece
from bert_jax.text.vocab import Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "Pack my box with five dozen liquor jugs; jumping foxes pack boxes quickly.",
    "Sphinx of black quartz, judge my vow! Café, naïve, Élan, 中文, 日本語 5 x 7 = 35.",
] * 20


def test_released_layout():
    tokens = train_wordpiece(TEXTS * 2, 2000, lowercase=True)
    assert tokens[0] == "[PAD]" and tokens[1] == "[unused0]" and tokens[99] == "[unused98]"
    assert tokens[100:104] == ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("size", [30, 60, 100, 150])
def test_exact_size_and_no_duplicates(size, lowercase):
    tokens = train_wordpiece(TEXTS, size, lowercase)
    assert len(tokens) == len(set(tokens)) == size
    assert tokens[0] == "[PAD]" and Vocab.from_tokens(tokens).mask_id < 20


@pytest.mark.parametrize("lowercase", [True, False])
def test_covers_its_text_and_every_rearrangement_of_its_letters(lowercase):
    tokens = train_wordpiece(TEXTS, 250, lowercase)
    tokenizer = WordPieceTokenizer(Vocab.from_tokens(tokens), lowercase)
    backwards = [" ".join(word[::-1] for word in text.split()) for text in TEXTS]
    for text in [*TEXTS, *backwards]:
        assert "[UNK]" not in tokenizer.tokenize(text)


def test_frequent_words_are_whole():
    tokens = train_wordpiece(["banana bandana " * 50 + "ananas"], 60, lowercase=True)
    assert {"banana", "bandana"} <= set(tokens)


def test_text_with_few_pieces_gives_a_smaller_vocabulary():
    tokens = train_wordpiece(["ab ab cd"], 500, lowercase=True)
    assert {"ab", "cd", "a", "##a", "d", "##d"} <= set(tokens) and len(tokens) < 60


def test_too_small_keeps_the_most_frequent_characters():
    tokens = train_wordpiece(["eeee tt x"], 9, lowercase=True)
    assert tokens[-4:] == ["e", "##e", "t", "##t"]


def test_punctuation_takes_one_slot():
    tokens = train_wordpiece(["a, b. 中 c"], 50, lowercase=True)
    assert "," in tokens and "##," not in tokens and "##中" not in tokens and "##c" in tokens


def test_same_text_same_vocabulary_in_any_order():
    assert train_wordpiece(TEXTS, 120, True) == train_wordpiece(reversed(TEXTS), 120, True)


@pytest.mark.parametrize("text", ["\u2581a \u2581b \U000f0000c", "a\tb\u2028c\0d", "x" * 300])
def test_odd_characters_do_no_harm(text):
    tokens = train_wordpiece([text, *TEXTS], 200, lowercase=False)
    assert Vocab.from_tokens(tokens)


@pytest.mark.parametrize(("texts", "size"), [([], 100), ([" \n"], 100), (["a b"], 5), (["a"], 0)])
def test_bad_input(texts, size):
    with pytest.raises(InputError):
        train_wordpiece(texts, size, lowercase=True)


def test_memory_is_bounded_and_frequent_words_survive(monkeypatch):
    monkeypatch.setattr(training, "_MAX_COUNTED_WORDS", 100)
    texts = [f"often word{i} seldom{i % 7}" for i in range(1000)]
    counts = training.count_basic_tokens(texts, lowercase=True)
    assert counts["often"] == 1000 and len(counts) <= 110


def test_needs_no_more_tokens_than_hugging_face(shared_data):
    if not importlib.util.find_spec("tokenizers"):
        pytest.skip("the package `tokenizers` is not installed")
    from tokenizers import BertWordPieceTokenizer

    with gzip.open(shared_data / "wikipedia_en_2015" / "wiki-00.txt.gz", "rt") as file:
        texts = [line for line in file.read(3_000_000).split("\n") if not line.startswith("<")]
    with gzip.open(shared_data / "wikitext-2" / "valid.raw.txt.gz", "rt") as file:
        held_out = file.read().split("\n")

    def num_tokens(tokens):
        tokenizer = WordPieceTokenizer(Vocab.from_tokens(tokens))
        ids = [i for text in held_out for i in tokenizer.encode(text)]
        assert ids.count(tokenizer.vocab.unk_id) < 0.002 * len(ids)
        return len(ids)

    peer = BertWordPieceTokenizer(lowercase=True)
    peer.train_from_iterator(texts, vocab_size=4000, min_frequency=1, show_progress=False)
    ids = peer.get_vocab()
    ours = train_wordpiece(texts, 4000, lowercase=True)
    assert num_tokens(ours) <= 1.01 * num_tokens(sorted(ids, key=ids.get))
