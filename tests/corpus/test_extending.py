"""Words that are added to a vocabulary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.corpus.extending import add_words
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.vocab_files import write_vocab
from bert_jax.text.wordpiece import WordPieceTokenizer, basic_tokens
from tests.refusals import refused

# Every letter is covered, as in published vocabularies, so nothing becomes [UNK].
TOKENS = [
    '[PAD]', '[unused0]', '[unused1]', *SPECIAL_TOKENS[1:],
    'a', 'b', 'c', 'd', 'e', 'é', 'ab', 'cab',
    '##a', '##b', '##c', '##d', '##e', '##é', '##ab', '##de',
    'A', '##A', '.', '-',
]
WORDS = st.text('abcdeéA', min_size=1, max_size=6)


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp('added')
    write_vocab(folder / 'vocab.txt', TOKENS)
    return folder / 'vocab.txt', folder / 'words.txt'


def added(files, words, lowercase=True):
    """(tokens, notes) for these lines of a file of words."""
    files[1].write_text('\n'.join(words), encoding='utf-8')
    return add_words(*files, lowercase)


@given(st.lists(WORDS, min_size=1, max_size=6), st.lists(WORDS, max_size=12), st.booleans())
def test_added_words_are_one_piece_and_others_keep_theirs(files, words, others, lowercase):
    tokens, _ = added(files, words, lowercase)
    before = WordPieceTokenizer(Vocab.from_tokens(TOKENS), lowercase)
    after = WordPieceTokenizer(Vocab.from_tokens(tokens), lowercase)
    new = set(basic_tokens(' '.join(words), lowercase))
    text = ' '.join([*words, *others]) + '. ' + '-'.join(words)
    for word in basic_tokens(text, lowercase):
        pieces = after.tokenize(word)
        if word in new:
            assert pieces == [word]
        elif not word.startswith(tuple(new - set(TOKENS))):
            assert pieces == before.tokenize(word)
        else:  # greedy: it begins with an added word
            assert ''.join(piece.removeprefix('##') for piece in pieces) == word


def test_unused_slots_come_first_then_new_lines(files):
    tokens, notes = added(files, ['Dada', '', '  bead ', 'ab', 'cede', 'déda', 'dada'])
    assert tokens[:3] == ['[PAD]', 'dada', 'bead']
    assert tokens[3:-2] == TOKENS[3:] and tokens[-2:] == ['cede', 'deda']
    assert notes == [
        f'{files[1]}: named twice, or in {files[0]} already: ab, dada',
        f'4 words added to the vocabulary, 2 of them in [unused] slots: {len(tokens)} tokens',
    ]


@pytest.mark.parametrize('content, message', [
    ('dada\nnew york\n', "words.txt: line 2 is 'new york', which BERT splits into 2 words"),
    ('##bea', 'splits into 3 words'),
    ('a\u6771b', 'splits into 3 words'),
    ('ok\n\u0301\n', 'splits into 0 words'),
    ('\n \n', 'is empty'),
])
def test_what_is_not_one_word_is_refused_with_its_line(files, content, message):
    with refused(message):
        added(files, content.split('\n'))


def test_files_that_cannot_be_used(files, tmp_path):
    with refused('words file cannot be read', 'config.data.add_tok'):
        add_words(files[0], tmp_path / 'none.txt', True)
    (tmp_path / 'latin.txt').write_bytes('dada\ndéda'.encode('latin-1'))
    with refused('line 2 is not UTF-8'):
        add_words(files[0], tmp_path / 'latin.txt', True)
