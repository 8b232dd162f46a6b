"""The fast tokenizer in the graph equals the reference, on every text."""

import functools
import gzip
import io
import unicodedata

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip('tensorflow_text')

import tensorflow as tf

from bert_jax.corpus import tokenize_tensorflow
from bert_jax.corpus.tokenize_tensorflow import FastTokenizer, safe_codepoints, split_sentences
from bert_jax.runtime.errors import InputError
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.sentencepiece import SentencePieceTokenizer
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.vocab_files import read_vocab
from bert_jax.text.wordpiece import WordPieceTokenizer

LETTERS = [chr(c) for c in range(33, 0x250)] + list('…µﬁßςσΣΑαёй中国ア가각힣\u1112\u0301\u0323ก')


PIECES = list(dict.fromkeys(letter for letter in LETTERS if letter.strip()))
VOCAB = Vocab.from_tokens(
    [*SPECIAL_TOKENS, *PIECES, *(f'##{piece}' for piece in PIECES), 'the', '##ing'])
TINY = {lowercase: WordPieceTokenizer(VOCAB, lowercase) for lowercase in (True, False)}


@functools.cache
def _graph(tokenizer):
    spec = tf.TensorSpec([None], tf.string)
    return tf.function(FastTokenizer(tokenizer), input_signature=[spec])


def test_tokenizers_that_make_the_same_ids_share_what_is_traced():
    """Making and tracing it takes longer than opening a small task."""
    first, again = (WordPieceTokenizer(VOCAB) for _ in range(2))
    assert tokenize_tensorflow._in_graph(again) is tokenize_tensorflow._in_graph(first)
    assert tokenize_tensorflow._in_graph(TINY[False]) is not tokenize_tensorflow._in_graph(first)


def assert_same(lines, tokenizer):
    """`lines`: str or bytes; the reference sees only the valid UTF-8 of bytes."""
    lines = [line.encode() if isinstance(line, str) else line for line in lines]
    ids, counts = _graph(tokenizer)(tf.constant(lines, tf.string))
    assert ids.dtype == counts.dtype == tf.int32
    rows = np.split(ids.numpy(), np.cumsum(counts.numpy()))
    assert rows.pop().size == 0
    for line, row in zip(lines, rows, strict=True):
        assert row.tolist() == tokenizer.encode(line.decode('utf-8', 'ignore')), line


CHARACTERS = st.one_of(
    st.characters(codec='utf-8'),
    st.characters(codec='utf-8', max_codepoint=0x24F),
    st.characters(codec='utf-8', categories=['Mn', 'Mc', 'Cf', 'Zs', 'Lo']),
    st.sampled_from(" \t\n\r\v\x1c\x85\u00a0\u2028\u200b\ufffdΣİßﬁ…µ[]#'’中가각ア"),
)
WORDS = st.one_of(
    st.text(CHARACTERS, max_size=8),
    st.sampled_from(['[MASK]', '[UNK]', 'the', '##ing', "don't", 'e\u0301', 'q\u0323\u0307', 'ΑΣ']),
    st.builds(
        lambda char, times: char * times,
        st.sampled_from('aéÅ가각ก中Σ\u0301'),
        st.sampled_from([22, 23, 66, 67, 99, 100, 101, 199, 200, 201]),
    ),
)
LINES = st.lists(st.lists(WORDS, max_size=6).map(' '.join), max_size=6)


@pytest.mark.slow
@pytest.mark.parametrize('lowercase', [True, False])
@settings(max_examples=80, deadline=None)
@given(lines=LINES)
def test_equals_reference_on_random_text(lowercase, lines):
    assert_same(lines, TINY[lowercase])


@pytest.mark.slow
@pytest.mark.parametrize('lowercase', [True, False])
def test_equals_reference_beside_every_safe_code_point(lowercase):
    # In the places where a neighbour could matter: alone, doubled, at word ends, near accents.
    codes = np.flatnonzero(safe_codepoints(lowercase))
    codes = codes[(codes < 0x3400) | (codes % 17 == 0)]
    lines = [
        f'{c} a{c}{c}b {c}a. E{c}\u0301 e\u0323{c}\u0307x A{c}' for c in map(chr, codes.tolist())]
    assert_same(lines, TINY[lowercase])


@pytest.mark.parametrize('lowercase', [True, False])
def test_equals_reference_on_edge_cases(lowercase):
    for lines in (
        [],
        [''],
        ['', ' ', 'a', '', 'ß'],
        ['ß', 'a'],
        ['[CLS] [SEP] [MASK] [UNK] [PAD]'],
        [b'caf\xe9 the', b'\xff\xfe', b'\xed\xa0\x80a', b'a\xf0\x9f b', b'\xc0\x80'],
        ['a' * 100, 'a' * 101, 'a' * 200, 'a' * 201, 'b', f"{'a' * 201} {'a' * 200}"],
        ['각' * 22 + 'x', '각' * 66, '각' * 67, '가' * 100, '가' * 101],
        ['中' * 300, 'é' * 101, 'e\u0301' * 101, '\u0301' * 300, 'a\u200b' * 200],
        ['the' + '-the' * 300, 'the ' * 5000],
    ):
        assert_same(lines, TINY[lowercase])


@pytest.mark.parametrize('group_bytes', [1, 10, 60])
def test_lines_are_tokenized_in_groups_as_they_are_together(group_bytes, monkeypatch):
    lines = ['', 'ß', 'the ' * 30, '', 'a' * 201, '', 'é' * 101, 'Ends.', '']
    monkeypatch.setattr(tokenize_tensorflow, '_MAX_BYTES_AT_ONCE', 50)
    monkeypatch.setattr(tokenize_tensorflow, '_GROUP_BYTES', group_bytes)
    fast = FastTokenizer(TINY[True])
    sizes = []
    at_once = fast._at_once

    def spied(group):
        sizes.append(len(group))
        return at_once(group)

    fast._at_once = spied
    by_groups = fast(tf.constant(lines))
    together = at_once(tf.constant(lines))
    assert len(sizes) > 2 and sum(sizes) == len(lines)
    for values, expected in zip(by_groups, together, strict=True):
        np.testing.assert_array_equal(values, expected)


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'lowercase'), [
    ('uncased', True), ('cased', False), ('multilingual-cased', False)])
def test_equals_reference_on_real_text_of_which_little_needs_the_reference(
    shared_data, tokenized, name, lowercase
):
    tokenizer = WordPieceTokenizer(
        read_vocab(shared_data / 'vocab' / f'bert-base-{name}-vocab.txt'), lowercase)
    with gzip.open(shared_data / 'wikipedia_en_2015' / 'wiki-03.txt.gz', 'rt') as file:
        documents = file.read().split('</doc>\n')[::36]
    # The lines that `tests/text/test_wordpiece.py` compares with the original.
    assert_same([example['text'] for example in tokenized], tokenizer)
    assert_same(''.join(documents).split('\n'), tokenizer)

    seen = []
    encode = tokenizer.encode
    tokenizer.encode = lambda text: seen.append(len(text.encode())) or encode(text)
    FastTokenizer(tokenizer)(split_sentences(tf.constant(documents)).flat_values)
    assert 0 < sum(seen) < 0.02 * sum(len(document.encode()) for document in documents)


def test_a_vocabulary_may_hold_a_line_that_no_word_is_long_enough_for():
    letters = Vocab.from_tokens([*SPECIAL_TOKENS, 'x', '##x', 'x' * 1000, '##' + 'x' * 300])
    lines = ['x' * count for count in (1, 200, 201, 301, 1000)]
    assert_same(lines, WordPieceTokenizer(letters, lowercase=True))


def test_split_sentences():
    wanted = {
        '': [],
        ' \n \r\n\t\n': [],
        'One. Two! Three? 4 five': ['One.', 'Two!', 'Three?', '4 five'],
        'no end\nnext line\n': ['no end', 'next line'],
        'e.g. this, i.e. that. Then': ['e.g. this, i.e. that.', 'Then'],
        '3.14 is pi.Not split': ['3.14 is pi.Not split'],
        'Who?! Me.': ['Who?!', 'Me.'],
        'He said "Go." Then (left.) [A] b.': ['He said "Go."', 'Then (left.)', '[A] b.'],
        'He said. “no” or ’s. ‘so’': ['He said.', '“no” or ’s.', '‘so’'],
        'Ends. (Then) goes. (not) ': ['Ends.', '(Then) goes. (not)'],
        'Fin. Élan. Дом.   \t A': ['Fin.', 'Élan.', 'Дом.', 'A'],
        '第一句。第二句！“对吗？”好': ['第一句。', '第二句！', '“对吗？”', '好'],
        'Cut.\nHere': ['Cut.', 'Here'],
        '好。” A.’ “B！」 c? 1。D': ['好。”', 'A.’', '“B！」', 'c?', '1。', 'D'],
    }
    found = split_sentences(tf.constant(list(wanted))).to_list()
    assert [[s.decode() for s in row] for row in found] == list(wanted.values())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(CHARACTERS | st.sampled_from('.!?。\n A(“')), max_size=4))
def test_splitting_loses_only_white_space(texts):
    found = split_sentences(tf.constant([t.encode() for t in texts], tf.string)).to_list()
    assert len(found) == len(texts)
    for text, sentences in zip(texts, found, strict=True):
        kept = b''.join(b''.join(sentences).split()).decode()
        wanted = b''.join(text.encode().split()).decode()
        assert kept.replace('\u3000', '') == wanted.replace('\u3000', '')
        assert all(s.strip() and b'\n' not in s for s in sentences)


def _train_sentencepiece(**options):
    text = ['the quick brown fox jumps over the lazy dog', 'pack my box, with jugs: 中国 é'] * 50
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(text), model_writer=model, vocab_size=70, minloglevel=2,
        hard_vocab_limit=False, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, **options,
    )  # fmt: skip
    return model.getvalue()


def test_sentencepiece_equals_reference(tmp_path):
    path = tmp_path / 'x.model'
    path.write_bytes(_train_sentencepiece(control_symbols=['[CLS]', '[SEP]', '[MASK]']))
    tokenizer = load_tokenizer(path, False)
    specials = [tokenizer.vocab.index[t] for t in ('<pad>', '<unk>', '[CLS]', '[SEP]', '[MASK]')]
    starts = [piece.startswith('\u2581') for piece in tokenizer.vocab.tokens]
    np.testing.assert_array_equal(
        np.flatnonzero(~tokenizer.vocab.is_continuation),
        sorted({*np.flatnonzero(starts), *specials}))
    assert tokenizer.vocab.mask_id not in tokenizer.encode('the [MASK] box')
    lines = [
        '', ' ', 'the quick fox', '[MASK] [CLS]', 'ﬁ … é e\u0301 中国 \u3000 x\ty', '\U0001f600',
    ]  # fmt: skip
    decomposed = [unicodedata.normalize('NFD', line) for line in lines]
    assert_same(lines + decomposed, tokenizer)
    assert_same([b'the \xff box', *lines], tokenizer)


@pytest.mark.parametrize('missing', ['[CLS]', '[SEP]', '[MASK]'])
def test_sentencepiece_without_a_special_says_how_to_train(missing):
    kept = {'[CLS]', '[SEP]', '[MASK]'} - {missing}
    with pytest.raises(InputError, match=rf'\{missing[:-1]}\].*control_symbols'):
        SentencePieceTokenizer(_train_sentencepiece(user_defined_symbols=sorted(kept)))
