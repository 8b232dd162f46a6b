"""Text without TensorFlow: sentences, ids, stores and losses are those with it."""

import functools
import itertools
import json
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.corpus import tokenize
from bert_jax.corpus import tokenize_plain as plain
from bert_jax.corpus.source import TextBatch
from bert_jax.text.huggingface import HuggingFaceTokenizer
from bert_jax.text.sentencepiece import SentencePieceTokenizer
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.wordpiece import Switches, WordPieceTokenizer
from tests import tokenizers_of_kinds as kinds
from tests.conftest import ROOT
from tests.in_process import run
from tests.numpy_kernels import kernels_of_numpy  # noqa: F401

LETTERS = [chr(c) for c in range(33, 0x250)] + list('…µﬁßςσΣΑαёй中国ア가각힣\u1112\u0301\u0323ก')
VOCAB = Vocab.from_tokens([*SPECIAL_TOKENS, *dict.fromkeys(
    piece for letter in LETTERS if letter.strip() for piece in (letter, f'##{letter}'))])
HARD = [
    '[MASK] x [CLS]', 'İstanbul ΑΣ ας', 'ﬁ … µ ß', 'a' * 199, 'b' * 201, 'é' * 150, '中文 x', '',
    'a\u0301\u0323b', 'tab\tnul\x00 bell\x07', '😀 emoji', 'ะก็', 'x\u00ady',
    'a\u2028b c\u00a0d']


@pytest.mark.parametrize('switches', [
    Switches(), Switches(strip_accents=False), Switches(tokenize_chinese_chars=False),
    Switches(do_basic_tokenize=False), Switches(never_split=('x',))])
@pytest.mark.parametrize('lowercase', [True, False])
def test_ids_are_the_reference_s(lowercase, switches, monkeypatch):
    # Comparing all code points takes a second for each of these.
    monkeypatch.setattr(plain, '_BASIC_PLANE', tuple(map(ord, sorted(set(''.join(HARD))))))
    tokenizer = WordPieceTokenizer(VOCAB, lowercase, switches)
    ids, counts = plain.make_encode(tokenizer)(HARD)
    expected = [tokenizer.encode(text) for text in HARD]
    assert ids.tolist() == sum(expected, [])
    assert counts.tolist() == list(map(len, expected))


@functools.cache
def plain_encode(lowercase):
    return plain.make_encode(WordPieceTokenizer(VOCAB, lowercase))


@settings(deadline=None)
@given(st.lists(st.text(st.sampled_from(LETTERS + [' ', '\t', '\n'])) | st.text()), st.booleans())
def test_any_text_has_the_reference_s_ids(texts, lowercase):
    tokenizer = WordPieceTokenizer(VOCAB, lowercase)
    texts = [text.encode('utf-8', 'ignore').decode() for text in texts]
    ids, counts = plain_encode(lowercase)(texts)
    expected = [tokenizer.encode(text) for text in texts]
    assert ids.tolist() == sum(expected, [])
    assert counts.tolist() == list(map(len, expected))


def test_without_the_fast_tokenizer_the_reference_is_used(monkeypatch):
    monkeypatch.setitem(sys.modules, 'tokenizers', None)
    tokenizer = WordPieceTokenizer(VOCAB, True)
    assert plain.make_encode(tokenizer)(['a b'])[0].tolist() == tokenizer.encode('a b')


@pytest.mark.slow
def test_sentences_are_those_of_the_graph():
    pytest.importorskip('tensorflow_text')
    import tensorflow as tf

    from bert_jax.corpus.tokenize_tensorflow import split_sentences

    every = list(map(chr, range(0x110000)))
    categories = np.array([unicodedata.category(char) for char in every])
    changes = categories[1:] != categories[:-1]
    is_edge = np.pad(changes, (1, 0)) | np.pad(changes, (0, 1))
    codes = np.arange(0x110000)
    # Ideographs and syllables: the ends of each run of a category, and some amid it.
    chosen = (codes < 0x3400) | (codes % 31 == 0) | is_edge
    assigned = np.array(every)[chosen & ~np.isin(categories, ['Cs', 'Cn', 'Co'])]
    # Python's Unicode may be newer than RE2's.
    known_to_re2 = tf.strings.regex_full_match(
        assigned, r'[\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z}\p{C}]').numpy()
    chars = assigned[known_to_re2].tolist()
    assert len(chars) > 15_000
    texts = [f'ab. {char}cd!” “x” {char}.{char}? 3\v\n y' for char in chars]
    texts += [f'Ab {char}! {char}?{char} ก {char} ก . {char}' for char in chars if char < '\uac00']
    expected = split_sentences(tf.constant(texts)).to_list()
    wrong = []
    for text, sentences in zip(texts, expected, strict=True):
        if [sentence.encode() for sentence in plain.split_sentences(text)] != sentences:
            wrong.append(text)
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    'kind', ['wordpiece', 'sentencepiece', 'sentencepiece without its mark', *kinds.KINDS])
def test_batches_are_those_of_the_graph(kind):
    pytest.importorskip('tensorflow_text')
    from bert_jax.corpus import tokenize_tensorflow

    text = (ROOT / 'tests' / 'fixtures' / 'wikitext.txt').read_bytes()
    documents = [text, 'Ein Satz. Noch einer! ﬁ'.encode(), b'bad \xff bytes. Yes.', b'']
    tokenizer = WordPieceTokenizer(VOCAB, True)
    if kind in kinds.KINDS:
        tokenizer = HuggingFaceTokenizer(kinds.KINDS[kind]().to_str())
    elif kind != 'wordpiece':
        has_mark = kind == 'sentencepiece'
        tokenizer = SentencePieceTokenizer(kinds.sentence_piece(add_dummy_prefix=has_mark))
    batches = [
        TextBatch(texts, split, note=number)
        for number, (texts, split) in enumerate(
            itertools.product([documents, [text]], [True, False]))]
    found = list(plain.tokenize_batches(iter(batches), tokenizer, 2))
    expected = list(tokenize_tensorflow.tokenize_batches(iter(batches), tokenizer, 2))
    assert [batch.note for batch in found] == [0, 1, 2, 3]
    for ours, theirs in zip(found, expected, strict=True):
        for name in ('ids', 'num_tokens', 'num_lines'):
            assert getattr(ours, name).dtype == getattr(theirs, name).dtype
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


@pytest.mark.parametrize('tensorflow', [False, True])
def test_the_door_gives_the_ids_of_the_reference_whatever_is_installed(monkeypatch, tensorflow):
    if tensorflow:
        pytest.importorskip('tensorflow_text')
    monkeypatch.setattr(tokenize, 'has_tensorflow', lambda: tensorflow)
    tokenizer = WordPieceTokenizer(VOCAB, True)
    ids, counts = tokenizer.encode_joined(HARD)
    for ours, theirs in zip(tokenize.make_encode(tokenizer, 'a test')(HARD), (ids, counts)):
        np.testing.assert_array_equal(ours, theirs)
    batch = TextBatch(['\n'.join(HARD).encode()], split=False, note=0)
    (found,) = tokenize.tokenize_batches(iter([batch]), tokenizer, 1, 'a test')
    assert found.ids.tolist() == ids.tolist()


@pytest.mark.parametrize('kind', kinds.KINDS)
def test_sentences_have_the_ids_of_their_document(kind):
    """Those of byte-level BPE behind the first with the space before them."""
    tokenizer = HuggingFaceTokenizer(kinds.KINDS[kind]().to_str())
    documents = ['The cat sat. The dog was 5! It walked', 'The mat. A cat']
    batch = TextBatch([text.encode() for text in documents], split=True, note=0)
    (found,) = plain.tokenize_batches(iter([batch]), tokenizer, 1)
    assert found.num_lines.tolist() == [3, 2]
    assert found.ids.tolist() == sum(map(tokenizer.encode, documents), [])
    encode = plain.make_encode(tokenizer)
    ids, counts = encode(documents)
    assert ids.tolist() == found.ids.tolist() and counts.sum() == len(ids)


TINY = ('--config.model.num_layers=1', '--config.model.hidden_size=16',
        '--config.model.num_heads=2', '--config.model.intermediate_size=16',
        '--config.train.steps=3', '--config.train.log_every=1', '--config.train.batch_size=8')


def losses(folder, which, config, *arguments):
    """The losses and accuracies of all steps of a run with TensorFlow, or with it `hidden`."""
    workdir = folder / which
    with pytest.MonkeyPatch.context() as patch:
        if which == 'hidden':
            for package in ('tensorflow', 'tensorflow_text'):
                patch.setitem(sys.modules, package, None)  # importing it fails
        run(config, *arguments, *TINY, f'--config.data.dir={workdir}-data', workdir=workdir)
    records = []
    for line in (workdir / 'metrics.jsonl').read_text().splitlines():
        record = {}
        for name, value in json.loads(line).items():
            if name == 'step' or 'loss' in name or 'accuracy' in name:
                record[name] = value
        records.append(record)
    return records


def check_same_losses(folder, loss, *arguments):
    """Asserts that runs log the same losses, among them `loss`, with TensorFlow and without."""
    hidden = losses(folder, 'hidden', *arguments)
    assert hidden == losses(folder, 'there', *arguments)
    assert any(loss in record for record in hidden)


@pytest.mark.slow
@pytest.mark.usefixtures('kernels_of_numpy')
def test_runs_have_the_losses_that_they_have_with_tensorflow(tmp_path):
    pytest.importorskip('tensorflow_text')
    check_same_losses(
        tmp_path, 'train/mlm_loss',
        'tiny_pretrain.py', '--config.train.eval_batch_size=8',
        '--config.data.source=' + str(ROOT / 'tests' / 'fixtures' / 'wikitext.txt'),
        '--config.data.vocab_size=300', '--config.data.held_out=0.2',
        '--config.train.max_eval_examples=8')
    rows = ['text,label\n']
    for number in range(99):
        rows += [f'good film number {number},good\n', f'bad film number {number},bad\n']
    (tmp_path / 'rows.csv').write_text(''.join(rows))
    fine = tmp_path / 'fine'
    fine.mkdir()
    check_same_losses(
        fine, 'train/loss',
        'classification.py', f'--config.data.source={tmp_path}/rows.csv',
        f'--config.init_checkpoint={tmp_path}/hidden')
