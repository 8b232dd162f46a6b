"""Training vocabularies: what they cover, and what stripping accents would lose."""

import gzip

import pytest

from bert_jax.corpus import wordpiece_training
from bert_jax.corpus.wordpiece_training import stripped_marks, train_wordpiece
from bert_jax.text.vocab import Vocab
from bert_jax.text.wordpiece import Switches, WordPieceTokenizer, basic_tokens
from tests.refusals import refused

TEXTS = [
    'The quick brown fox jumps over the lazy dog, and the dog sleeps on.',
    'Pack my box with five dozen liquor jugs; jumping foxes pack boxes quickly.',
    'Sphinx of black quartz, judge my vow! Café, naïve, Élan, 中文, 日本語 5 x 7 = 35.',
] * 20


def test_released_layout():
    tokens = train_wordpiece(TEXTS * 2, 2000, lowercase=True)
    assert tokens[:2] == ['[PAD]', '[unused0]']
    assert tokens[99:104] == ['[unused98]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']


@pytest.mark.parametrize('size', [30, 60, 150])
def test_exact_size_and_no_duplicates_in_any_order(size):
    tokens = train_wordpiece(TEXTS, size, lowercase=False)
    assert len(tokens) == len(set(tokens)) == size and Vocab.from_tokens(tokens).mask_id < 20
    assert tokens == train_wordpiece(reversed(TEXTS), size, lowercase=False)


@pytest.mark.parametrize('lowercase', [True, False])
def test_covers_its_text_and_every_rearrangement_of_its_letters(lowercase):
    tokens = train_wordpiece(TEXTS, 250, lowercase)
    tokenizer = WordPieceTokenizer(Vocab.from_tokens(tokens), lowercase)
    backwards = [' '.join(word[::-1] for word in text.split()) for text in TEXTS]
    for text in [*TEXTS, *backwards]:
        assert '[UNK]' not in tokenizer.tokenize(text)


@pytest.mark.parametrize(('texts', 'size', 'contained', 'absent'), [
    (['banana bandana ' * 50 + 'ananas'], 60, {'banana', 'bandana'}, set()),  # frequent: whole
    (['ab ab cd'], 500, {'ab', 'cd', 'a', '##a', 'd', '##d'}, set()),  # fewer pieces than asked
    (['eeee tt x'], 9, {'e', '##e', 't', '##t'}, {'x'}),  # too small: the most frequent characters
    (['a, b. 中 c'], 50, {',', '中', '##c'}, {'##,', '##中'}),  # punctuation continues nothing
])
def test_what_a_vocabulary_contains(texts, size, contained, absent):
    tokens = set(train_wordpiece(texts, size, lowercase=True))
    assert contained <= tokens and not absent & tokens and len(tokens) < 70


def test_odd_characters_do_no_harm():
    for text in ('\u2581a \u2581b \U000f0000c', 'a\tb\u2028c\0d', 'x' * 300):
        assert Vocab.from_tokens(train_wordpiece([text, *TEXTS], 200, lowercase=False))


@pytest.mark.parametrize('text', [
    pytest.param('Café naïve Ёлка Άλφα Việt ❤\ufe0f', id='accents, and the look of an emoji'),
    '',
])
def test_accents_are_no_marks_that_stripping_must_keep(text):
    assert stripped_marks([text, text]) == (0, [])


@pytest.mark.parametrize('text, share, mark', [
    ('किताब पढ़ी कुत्ता', 3 / 15, '\u0941'),
    ('ที่นี่ดี', 5 / 8, '\u0e35'),
    ('がか', 1 / 3, '\u3099'),
])
def test_stripping_drops_marks_that_are_no_accents(text, share, mark):
    found, marks = stripped_marks([text, text])
    assert found == pytest.approx(share)
    assert mark in marks
    assert basic_tokens(text) != basic_tokens(text, switches=Switches(strip_accents=False))


def test_a_vocabulary_without_stripping_keeps_marks():
    texts = ['कुत्ता, ที่นี่ดี é'] * 9
    tokens = train_wordpiece(texts, 200, True, Switches(strip_accents=False))
    assert {'##\u0941', '##\u0e35', 'é'} <= set(tokens)
    assert not {'##\u0941', '##\u0e35', 'é'} & set(train_wordpiece(texts, 200, True))


@pytest.mark.parametrize(('texts', 'size'), [([' \n'], 100), (['a b'], 5)])
def test_bad_input(texts, size):
    with refused():
        train_wordpiece(texts, size, lowercase=True)


def test_memory_is_bounded_and_frequent_words_survive(monkeypatch):
    monkeypatch.setattr(wordpiece_training, 'MAX_COUNTED_WORDS', 100)
    texts = [f'often word{i} seldom{i % 7}' for i in range(1000)]
    counts = wordpiece_training.count_basic_tokens(texts, lowercase=True)
    assert counts['often'] == 1000 and len(counts) <= 110


@pytest.mark.slow
def test_needs_no_more_tokens_than_hugging_face(shared_data):
    peers = pytest.importorskip('tokenizers', reason='the package is not installed')
    with gzip.open(shared_data / 'wikipedia_en_2015' / 'wiki-00.txt.gz', 'rt') as file:
        texts = [line for line in file.read(1_000_000).split('\n') if not line.startswith('<')]
    with gzip.open(shared_data / 'wikitext-2' / 'valid.raw.txt.gz', 'rt') as file:
        held_out = file.read().split('\n')

    def num_tokens(tokens):
        tokenizer = WordPieceTokenizer(Vocab.from_tokens(tokens))
        ids = [i for text in held_out for i in tokenizer.encode(text)]
        assert ids.count(tokenizer.vocab.unk_id) < 0.002 * len(ids)
        return len(ids)

    peer = peers.BertWordPieceTokenizer(lowercase=True)
    peer.train_from_iterator(texts, vocab_size=4000, min_frequency=1, show_progress=False)
    ids = peer.get_vocab()
    ours = train_wordpiece(texts, 4000, lowercase=True)
    assert num_tokens(ours) <= 1.01 * num_tokens(sorted(ids, key=ids.get))
