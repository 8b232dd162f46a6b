"""Prediction with every kind of tokenizer, against the libraries that the tokenizers are of."""

import dataclasses
import functools
import json
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
import tokenizers

from bert_jax.predict.masked_words import FillMask
from bert_jax.predict.model import Model
from bert_jax.predict.stream import Notes
from bert_jax.predict.texts import text_units, tokenize
from bert_jax.text.words import WordSplitter
from bert_jax.tools.report import examples
from tests.predict import tiny
from tests.tokenizer_files import ALL_KINDS, KINDS, LIBRARY_KINDS, write_tokenizer

LABELS = {'classification': ('bad', 'good'), 'token_classification': ('O', 'B-A', 'I-A')}
TEXTS = [
    'The cat sat on the mat.', 'unwanted', 'Ünïcödé naïve café', '東京 12,345  times', 'a',
    "the dog didn't see it: walked talks", '😀👍🏽 e-mail', 'ACGTAC GT']


@functools.cache
def vocab_file(kind: str) -> Path:
    return write_tokenizer(kind, Path(tempfile.mkdtemp()))


@functools.cache
def model_of(kind: str, head: str) -> Model:
    """Random weights with a head, and a tokenizer of a kind."""
    return tiny.random_model(vocab_file(kind), head, LABELS.get(head, ()))


def library_of(kind):
    return tokenizers.Tokenizer.from_file(str(vocab_file(kind)))


PROMPT = 'The cat sat on the {}, and the {} sleeps'


@pytest.mark.parametrize('kind', KINDS)
def test_a_mask_is_written_as_the_tokenizer_does_or_as_berts(kind):
    model = model_of(kind, 'pretraining')
    own = model.vocab.tokens[model.vocab.mask_id]
    command = FillMask(model, 5)
    read = command.read(PROMPT.format('[MASK]', '[MASK]'), 1)
    assert command.read(PROMPT.format(own, '[MASK]'), 1).tokens == read.tokens
    assert command.read(PROMPT.format(own, own), 1).tokens == read.tokens
    first, second = read.tokens
    is_mask = np.array(first.ids) == model.vocab.mask_id
    assert np.flatnonzero(is_mask).tolist() == [first.place, second.place]
    around = [token for token in first.ids if token != model.vocab.mask_id]
    parts = [model.tokenizer.encode(part) for part in PROMPT.replace(' {}', '{}').split('{}')]
    assert around == sum(parts, [])


# Those whose token takes in the spaces before it, or that have no space before a word.
@pytest.mark.parametrize('kind', ['roberta', 'modernbert', 'split_by_regex', 'xlmr'])
def test_a_text_with_masks_has_the_ids_of_the_library(kind):
    model = model_of(kind, 'pretraining')
    library = library_of(kind)
    own = model.vocab.tokens[model.vocab.mask_id]
    for prompt in (PROMPT, '{} cat {}', 'the {}{} cat.', '({}) {}'):
        text = prompt.format(own, own)
        (first, *_) = FillMask(model, 5).read(text, 1).tokens
        assert first.ids == library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize('kind', ['roberta', 'modernbert', 'split_by_regex', 'xlmr', 'camembert'])
@pytest.mark.parametrize('prompt', ['The cat sat on the {}, and', '{} cat', 'the {}.', '({}) a'])
def test_what_is_filled_in_is_joined_as_the_library_joins_it(kind, prompt):
    model = model_of(kind, 'pretraining')
    library = library_of(kind)
    added = library.get_added_tokens_decoder()
    text = prompt.format('[MASK]')
    (result,) = model.fill_mask([text], top_k=tiny.NUM_ROWS)
    (token,) = FillMask(model, 5).read(text, 1).tokens
    num_compared = 0
    for found in result['predictions'][: len(model.vocab)]:
        shown = model.tokenizer.shown(found['id'])
        if found['id'] in added or '\ufffd' in shown or not shown:  # parts of letters, spaces
            continue
        ids = [*token.ids]
        ids[token.place] = found['id']
        expected = library.decode(ids, skip_special_tokens=False)
        assert spaced(found['sequence']) == spaced(expected)
        num_compared += 1
    assert num_compared > 140


def spaced(text):
    """A text without the spaces at its ends, and beside signs, where decoders leave some out."""
    for mark in '.,?!()':
        text = text.replace(f' {mark}', mark).replace(f'{mark} ', mark)
    return text.strip()


@pytest.mark.parametrize('kind', ['letters', 'kmers'])
def test_letters_are_filled_in_without_spaces(kind):
    model = model_of(kind, 'pretraining')
    (result,) = model.fill_mask(['ACGT[MASK]AC'], top_k=tiny.NUM_ROWS)
    sequences = {found['token']: found['sequence'] for found in result['predictions']}
    expected = {'letters': ('G', 'ACGTGAC'), 'kmers': ('GG', 'ACGTGGAC')}
    piece, sequence = expected[kind]
    assert sequences[piece] == sequence


@pytest.mark.parametrize('kind', LIBRARY_KINDS)
def test_pairs_and_single_texts_are_framed_as_by_the_library(kind):
    model = model_of(kind, 'classification')
    library = library_of(kind)
    for texts in (['The cat sat'], ['The cat sat', 'on the mat']):
        tokenized = tokenize(model, texts, 1, notes=Notes(model), encode=model.encode)
        _, units = text_units(model, [tokenized])
        expected = library.encode(*texts)
        assert units.sequences.ids.tolist() == expected.ids
        (first_length,) = units.sequences.first_lengths
        if len(texts) == 2:  # the second text begins behind all separators
            second = model.encode(texts[1])
            assert units.sequences.ids[first_length:].tolist() == [*second, model.vocab.sep_id]


@pytest.mark.parametrize('kind', ['wordpiece', 'sentencepiece', 'roberta', 'xlmr', 'letters'])
def test_predictions_do_not_depend_on_the_other_texts(kind):
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    masked = [f'{text} [MASK]' for text in TEXTS]
    for found, alone in (
        every(model_of(kind, 'classification').classify, TEXTS),
        every(model_of(kind, 'classification').classify, pairs),
        every(model_of(kind, 'token_classification').tag, TEXTS),
        every(model_of(kind, 'question_answering').answer, pairs),
        every(model_of(kind, 'pretraining').fill_mask, masked),
        every(model_of(kind, 'pretraining').score, TEXTS),
        every(model_of(kind, 'multiple_choice').classify, [('a', *TEXTS[:3]), ('b', 'c', 'd')]),
    ):
        assert 'error' not in json.dumps(found)
        words, numbers = parted(found)
        assert parted(alone) == (words, pytest.approx(numbers, rel=1e-3))


def every(command, texts):
    """(Results of all texts at once, those of each alone)."""
    return command(texts), [command([text])[0] for text in texts]


def parted(results):
    """(Results without their floats, these); the score of a perplexity grows with the rounding."""
    numbers = []

    def kept(digits):
        numbers.append(float(digits))
        return 'number'

    return json.loads(json.dumps(results), parse_float=kept), numbers


@pytest.mark.parametrize('kind', ALL_KINDS)
def test_every_word_has_a_tag_at_its_first_piece(kind):
    model = model_of(kind, 'token_classification')
    text, words = model.tag(['AC  ca\u00a0talks é', ['AC', 'ca', 'talks', '', 'é']])
    if kind not in ('letters', 'kmers'):  # of which each token is a word
        assert [tag['word'] for tag in text['tags']] == ['AC', 'ca', 'talks', 'é']
    for tag in text['tags']:
        assert text['text'][tag['start']:tag['end']] == tag['word']
    assert [tag['word'] for tag in words['tags']] == ['AC', 'ca', 'talks', '', 'é']


@pytest.mark.parametrize('kind', KINDS)
def test_a_long_text_is_tagged_in_windows(kind):
    model = model_of(kind, 'token_classification')
    text = ' '.join(TEXTS * 6)
    (result,) = model.tag([text])
    (first,) = model.tag([text[:20]])
    words = WordSplitter(model.tokenizer).words(text)
    assert [(tag['start'], tag['end']) for tag in result['tags']] == [
        (word.begin, word.end) for word in words]
    assert sum(len(word.ids) for word in words) > model.max_length
    assert [tag['word'] for tag in result['tags'][:3]] == [tag['word'] for tag in first['tags'][:3]]


@pytest.mark.parametrize('kind', ALL_KINDS)
def test_answers_are_parts_of_their_contexts(kind):
    model = model_of(kind, 'question_answering')
    context = '  The cat — “sat” 東京,  on 😀 ACGT é 12  ' * 5
    limited = dataclasses.replace(model.weights, inference={'max_seq_length': 32, 'doc_stride': 8})
    for one in (model, Model(limited, devices=jax.devices()[:1])):
        (found,) = one.answer([('cat AC', context)])
        assert found['answer'] == context[found['start']:found['end']] != ''
        assert found['answer'] == found['answer'].strip()


@pytest.mark.parametrize('kind', LIBRARY_KINDS)
def test_pieces_of_features_can_be_read(kind):
    model = model_of(kind, 'pretraining')
    text = 'The café sat 東'  # the last has no piece of its own in most
    (result,) = model.features([text])
    ids = [model.vocab.cls_id, *model.encode(text), model.vocab.sep_id]
    assert len(result['tokens']) == len(ids) == len(result['values'])
    joined = ''.join(result['tokens'][1:-1])
    assert 'caf' in joined.lower() and 'Ã' not in joined and '\ufffd' not in joined


@pytest.mark.parametrize('kind', ['wordpiece', 'roberta', 'camembert'])
def test_the_report_knows_true_guesses(kind, monkeypatch):
    """A word of one piece is among all guesses, and no guess is a word of several pieces."""
    model = model_of(kind, 'pretraining')
    monkeypatch.setattr(examples, '_NUM_GUESSES', tiny.NUM_ROWS)
    words = ['The', 'cat', 'sat', 'on', 'affable', 'mat']
    found = examples.mask_each_word(model, ' '.join(words))
    assert [masked.word for masked in found] == words
    pieces = model.tokenizer.encode_words(words)
    for masked, ids in zip(found, pieces, strict=True):
        true = [guess.piece for guess in masked.guesses if guess.is_true]
        assert bool(true) == (len(ids) == 1)
    tokens, probabilities = examples.attention(model, ' '.join(words))
    assert len(tokens) == 2 + sum(map(len, pieces)) == probabilities.shape[-1]
