"""Files that make the package `tokenizers` panic, draw at random, or blow texts up."""

import json

import pytest

from bert_jax.corpus import tokenize_plain
from bert_jax.corpus.source import TextBatch
from bert_jax.predict import stream
from bert_jax.runtime.errors import InputError
from bert_jax.text import huggingface
from bert_jax.text.huggingface import HuggingFaceTokenizer
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.library import Unsplittable
from tests import tokenizers_of_kinds as kinds

SLOW = 'a' * 40 + '!'  # a backtracking pattern gives up on it
BACKTRACKING = {'Regex': '(a+)+$'}


def replaced(pattern, content):
    return {'type': 'Replace', 'pattern': pattern, 'content': content}


def letters(content, times=1, pattern=None):
    """A normalizer that replaces each `a` by a content, and so on."""
    step = replaced(pattern or {'String': 'a'}, content)
    return {'type': 'Sequence', 'normalizers': [step] * times}


def changed(**parts):
    """Byte-level BPE with other parts."""
    return json.dumps(json.loads(kinds.roberta().to_str()) | parts)


def with_split(content, pattern):
    """A tokenizer.json that splits texts by a pattern first."""
    parts = json.loads(content)
    step = {'type': 'Split', 'pattern': pattern, 'behavior': 'Isolated', 'invert': False}
    words = {'type': 'Sequence', 'pretokenizers': [step, parts['pre_tokenizer']]}
    return json.dumps(parts | {'pre_tokenizer': words})


@pytest.mark.parametrize('parts', [
    {'normalizer': replaced({'Regex': ''}, 'b')},
    {'normalizer': {'type': 'Precompiled', 'precompiled_charsmap': 'AAAA'}},
], ids=['an empty pattern', 'a damaged map'])
def test_a_panic_at_load_is_one_line(parts, capfd):
    with pytest.raises(InputError, match=r'^tokenizer.json.*tokenizers') as caught:
        HuggingFaceTokenizer(changed(**parts))
    assert '\n' not in str(caught.value)
    assert capfd.readouterr() == ('', '')


@pytest.mark.parametrize('place', [0, 2])
def test_a_text_that_panics_is_told_from_others(monkeypatch, capfd, place):
    monkeypatch.setattr(huggingface, '_GROUP', 2)
    ours = HuggingFaceTokenizer(with_split(changed(), BACKTRACKING))
    with pytest.raises(Unsplittable, match=r"1 of 3 texts.*cannot split 'aaa.*retry") as caught:
        texts = ['the cat', 'a dog']
        texts.insert(place, SLOW)
        ours.encode_batch(texts)
    assert caught.value.places == (place,)
    assert ours.encode_batch(['the cat', 'a dog']) == [ours.encode('the cat'), ours.encode('a dog')]
    assert capfd.readouterr().err.count('panicked') == 1  # silently after the first


@pytest.mark.parametrize('normalizer', [
    letters('a' * 1000, 3),
    letters('aa', 8),
    letters('a' * 10, 5, {'Regex': '[a-z]'}),
    letters('a' * 5000),
    {'type': 'Sequence', 'normalizers': [
        replaced({'Regex': '^'}, 'a' * 1000), *letters('a' * 100, 2)['normalizers']]},
    {'type': 'Sequence', 'normalizers': [
        replaced({'String': '\u0644'}, '\ufdfa'), {'type': 'NFKD'}] * 4},
    {'type': 'Sequence', 'normalizers': [{'type': 'Prepend', 'prepend': 'a' * 500}] * 10},
    {'type': 'Sequence', 'normalizers': [{'type': 'ByteLevel'}] * 30},
], ids=['thousands', 'doubled', 'by patterns', 'at once', 'beginnings', 'ligatures', 'before',
        'bytes'])
def test_a_normalizer_that_blows_texts_up_is_refused(normalizer):
    with pytest.raises(InputError, match=r'^tokenizer.json.* normalizer|ByteLevel'):
        HuggingFaceTokenizer(changed(normalizer=normalizer))


def test_what_the_normalizer_blows_up_is_left_out():
    """Of a file in which this is rare."""
    ours = HuggingFaceTokenizer(changed(normalizer=letters('q' * 80, pattern={'Regex': 'Q'})))
    assert len(ours.encode('Q')) == len(ours.encode('q' * 80))
    with pytest.raises(Unsplittable, match='1 of 2 texts.*makes over'):
        ours.encode_batch(['the cat', 'Q' * 10_000])


def test_many_harmless_steps_change_no_ids():
    steps = [replaced({'Regex': f'[{char}]'}, '"') for char in '\u201c\u201d\u201e\u201f\u00ab']
    steps += [replaced({'String': '\u2026'}, '...'), replaced({'Regex': '\\s+'}, ' ')]
    library = kinds.roberta()
    content = changed(normalizer={'type': 'Sequence', 'normalizers': steps})
    text = 'the \u201ccat\u201d \u2026  sat ' * 500
    expected = library.encode(
        text.replace('\u201c', '"').replace('\u201d', '"').replace('\u2026', '...').replace(
            '  ', ' '), add_special_tokens=False).ids
    assert HuggingFaceTokenizer(content).encode(text) == expected


def test_sampling_is_off_and_said(tmp_path, capsys):
    """Of Unigram: by its model, or by the file beside it."""
    library = kinds.xlmr()
    path = kinds.write(
        tmp_path, library, sp_model_kwargs={'enable_sampling': True, 'nbest_size': -1})
    parts = json.loads(path.read_text())
    parts['model'] |= {'alpha': 0.1, 'nbest_size': 64}
    path.write_text(json.dumps(parts))
    ours = load_tokenizer(path, lowercase=True)
    text = ' '.join(kinds.TEXTS[:4])
    assert ours.encode(text) == library.encode(text, add_special_tokens=False).ids
    assert ours.encode_batch([text]) == [ours.encode(text)]
    err = capsys.readouterr().err
    assert 'model.alpha=0.1 is not applied' in err and 'model.nbest_size=64 is not applied' in err
    assert "sp_model_kwargs={'enable_sampling': True" in err


def test_dropout_is_off_and_said(capsys):
    library = kinds.roberta()
    model = json.loads(library.to_str())['model']
    ours = HuggingFaceTokenizer(changed(model=model | {'dropout': 0.5}), source='FILE')
    text = ' '.join(kinds.TEXTS[:4])
    assert ours.encode(text) == library.encode(text, add_special_tokens=False).ids
    assert ours.encode_batch([text]) == [ours.encode(text)]
    assert 'note: FILE: model.dropout=0.5 is not applied' in capsys.readouterr().err
    # The store of an earlier version, whose ids were drawn, is not taken.
    assert ours.fingerprint != HuggingFaceTokenizer(changed(model=model)).fingerprint
    assert json.loads(ours.content)['model']['dropout'] == 0.5


def test_lines_of_a_corpus_that_panic_are_left_out(capsys):
    ours = HuggingFaceTokenizer(with_split(changed(), BACKTRACKING))
    document = f'the cat\n{SLOW}\na dog'.encode()
    batch, = tokenize_plain.tokenize_batches(iter([TextBatch([document], False, None)]), ours, 1)
    lines = [ours.encode('the cat'), [], ours.encode(' a dog')]
    assert batch.ids.tolist() == sum(lines, [])
    assert batch.num_tokens.tolist() == list(map(len, lines)) and batch.num_lines.tolist() == [3]
    assert 'warning: 1 lines are left out' in capsys.readouterr().err


def test_a_prediction_is_lost_for_the_text_that_panics_alone():
    """Of a command that splits texts in `batch`, as that of tags does."""
    ours = HuggingFaceTokenizer(with_split(changed(), BACKTRACKING))

    class Batching:
        def read(self, text, number):
            return text

        def batch(self, texts):
            return ours.encode_batch(texts), 'units'

    chunk = stream._Chunk(['the cat', SLOW, 'a dog'], 1)
    made, units = stream._read_chunk(Batching(), chunk)
    assert made.readable == ['the cat', 'a dog'] and units == 'units'
    assert 'cannot split' in str(made.read[1])
