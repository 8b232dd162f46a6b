"""Scores of folders of cross-encoders are sentence-transformers' own, or the folder is refused."""

import json
import shutil

import numpy as np
import pytest

from bert_jax import convert
from bert_jax.loading import load
from tests.predict import tiny
from tests.refusals import refused

pytestmark = pytest.mark.extras

QUERY, DOCUMENTS = 'a b c', ['a', 'b d e f g h i j', 'n q . a', 'A B']
MODEL = 'config_sentence_transformers.json'
CONFIG, TOKENIZER = 'config.json', 'tokenizer_config.json'
OF_VERSION_3 = 'sbert_ce_default_activation_function'
IDENTITY, SIGMOID, TANH = (
    f'torch.nn.modules.{name}'
    for name in ('linear.Identity', 'activation.Sigmoid', 'activation.Tanh'))


@pytest.fixture(scope='module')
def theirs():
    """The package."""
    return pytest.importorskip('sentence_transformers')


def of_transformers(folder, num_labels):
    """Writes a folder of transformers, as versions before 5 saved cross-encoders."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(0)
    base = str(tiny.RECORDED / 'base')
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=num_labels)
    with torch.no_grad():
        model.classifier.weight.mul_(60)  # so that the activations differ
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


@pytest.fixture(scope='module')
def plain(theirs, tmp_path_factory):
    """A folder with one output."""
    return of_transformers(tmp_path_factory.mktemp('plain'), num_labels=1)


def saved(theirs, source, folder, activation=None, **arguments):
    """What the package saves of a folder; `activation` is the name of a class of torch.nn."""
    import torch

    if activation:
        arguments['activation_fn'] = getattr(torch.nn, activation)()
    theirs.CrossEncoder(str(source), device='cpu', **arguments).save_pretrained(str(folder))
    return folder


def with_fields(folder, files):
    """The folder, with fields of its files set."""
    for name, fields in files.items():
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


def check_scores(theirs, folder, ours=None):
    """Compares all values with theirs of `folder`; `ours` is another folder of the same model."""
    read = theirs.CrossEncoder(str(folder), device='cpu')
    expected = read.predict([(QUERY, document) for document in DOCUMENTS])
    model = load(ours or folder)
    (found,) = model.rerank([(QUERY, *DOCUMENTS)])
    scores = {entry['index']: entry['score'] for entry in found['ranking']}
    np.testing.assert_allclose([scores[i] for i in range(len(expected))], expected, atol=1e-5)
    assert [entry['index'] for entry in found['ranking']] == np.argsort(-expected).tolist()
    values = [found['value'] for found in model.classify([(QUERY, text) for text in DOCUMENTS])]
    np.testing.assert_allclose(values, expected, atol=1e-5)
    assert model.max_length == read.max_seq_length


# Fields of a folder of transformers, as versions of the package before 5 added them.
OLD = {
    'version 3': {CONFIG: {OF_VERSION_3: IDENTITY}},
    'version 4': {CONFIG: {'sentence_transformers': {'activation_fn': SIGMOID}}},
    'version 4 after version 3': {CONFIG: {
        OF_VERSION_3: SIGMOID, 'sentence_transformers': {'activation_fn': IDENTITY}}},
    'short': {CONFIG: {OF_VERSION_3: TANH}, TOKENIZER: {'model_max_length': 6}},
    'cut at the beginning': {
        CONFIG: {OF_VERSION_3: IDENTITY},
        TOKENIZER: {'model_max_length': 6, 'truncation_side': 'left'}},
}
# Arguments of the package.
NEW = {
    'usual': {},
    'identity': {'activation': 'Identity'},
    'tanh': {'activation': 'Tanh'},
    'short': {'max_length': 7},
    'empty prompts': {'prompts': {'query': '', 'document': ''}},
}


@pytest.mark.parametrize('kind', OLD)
def test_scores_of_old_folders_are_theirs(theirs, plain, tmp_path, kind):
    check_scores(theirs, with_fields(shutil.copytree(plain, tmp_path / 'model'), OLD[kind]))


@pytest.mark.parametrize('kind', NEW)
def test_scores_are_theirs(theirs, plain, tmp_path, kind):
    check_scores(theirs, saved(theirs, plain, tmp_path / 'model', **NEW[kind]))


def test_what_they_change_of_a_converted_folder_counts(theirs, plain, tmp_path):
    """transformers keeps this project's settings in config.json, which say what was before."""
    given = saved(theirs, plain, tmp_path / 'given', activation='Identity', max_length=9)
    convert.main([str(given), str(tmp_path / 'ours'), '--to', 'huggingface'])
    check_scores(theirs, tmp_path / 'ours')
    changed = saved(
        theirs, tmp_path / 'ours', tmp_path / 'changed', activation='Sigmoid', max_length=6)
    check_scores(theirs, changed)
    convert.main([str(changed), str(tmp_path / 'run'), '--to', 'bert_jax'])
    check_scores(theirs, changed, tmp_path / 'run')


def test_outputs_without_an_activation_are_named(plain, capsys):
    model = load(plain)
    assert 'activation' not in capsys.readouterr().err
    model.rerank([(QUERY, *DOCUMENTS)])
    said = capsys.readouterr().err
    assert f'{plain} (BertForSequenceClassification) names no activation that is applied' in said


def test_an_activation_of_several_outputs_is_named(theirs, tmp_path, capsys):
    given = of_transformers(tmp_path / 'given', num_labels=3)
    load(saved(theirs, given, tmp_path / 'model', activation='Sigmoid'))
    assert 'activation.Sigmoid is not applied' in capsys.readouterr().err


def test_a_default_prompt_is_refused(theirs, plain, tmp_path):
    folder = saved(
        theirs, plain, tmp_path / 'model', prompts={'x': 'q. '}, default_prompt_name='x')
    with refused(MODEL, "default_prompt_name='x'", "'q. '"):
        load(folder)
