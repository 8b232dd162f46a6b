"""Tags of running text: the words and entities of transformers' token-classification pipeline."""

import warnings
from pathlib import Path

import pytest

from bert_jax.foreign.huggingface import write_huggingface
from bert_jax.predict.model import Model
from tests.predict import tiny
from tests.tokenizer_files import write_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.extras]

pytest.importorskip('torch', reason='the extra [parity] is not installed')
transformers = pytest.importorskip('transformers', reason='the extra [parity] is not installed')

LABELS = ('O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC')
TEXTS = [
    "John Smith (unwanted) didn't live—in “Paris”.",
    'Times:  12,345 e-mail@x.org 3€',
    'Москва и Київ: «большой» город, да.',
    '我是北京人，東京と京都。カタカナ ひらがな',
    'ภาษาไทย และ हिन्दी भाषा है।',
    '서울은 대한민국의 수도이다.',
    'هذه مدينة القاهرة، والعربية لغة.',
]


def model_and_pipeline(kind: str, folder: Path):
    """(A tagger with random weights and a tokenizer of a kind, transformers' pipeline of it)."""
    vocab_file = write_tokenizer(kind, folder / 'tokenizer')
    model: Model = tiny.random_model(vocab_file, 'token_classification', LABELS)
    write_huggingface(folder / 'model', model.weights)
    return model, transformers.pipeline('token-classification', model=str(folder / 'model'))


def entities_of(pipeline, text, aggregation):
    """(Label, first and last character) of the pipeline's entities."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of one text at a time
        found = pipeline(text, aggregation_strategy=aggregation)
    return [(entity['entity_group'], entity['start'], entity['end']) for entity in found]


def entities_here(text, result):
    """The same of a result of `tag`."""
    for entity in result['entities']:
        assert entity['text'] == text[entity['start']:entity['end']]
    return [(entity['label'], entity['start'], entity['end']) for entity in result['entities']]


@pytest.mark.parametrize('kind', ['wordpiece', 'roberta', 'xlmr', 'camembert'])
def test_entities_are_those_of_the_pipeline(kind, tmp_path):
    """Of tokens ('none', 'simple') for every kind, of words for those that have some there."""
    model, pipeline = model_and_pipeline(kind, tmp_path)
    found = zip(TEXTS, model.tag(TEXTS, 'simple'), model.tag(TEXTS), strict=True)
    for text, of_tokens, of_words in found:
        tokens = pipeline(text, aggregation_strategy='none', ignore_labels=[])
        assert [(tag['label'], tag['start'], tag['end']) for tag in of_tokens['tags']] == [
            (token['entity'], token['start'], token['end']) for token in tokens]
        assert entities_here(text, of_tokens) == entities_of(pipeline, text, 'simple')
        if kind == 'wordpiece':
            assert entities_here(text, of_words) == entities_of(pipeline, text, 'first')
