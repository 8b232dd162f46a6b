"""Several adapters of one model: each says what it says by itself, in as few passes as possible."""

import dataclasses
import functools
import json
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bert_jax.answers.engine import outputs_by_head
from bert_jax.config.adapters import AdapterOptions
from bert_jax.foreign import load_weights, with_adapter
from bert_jax.loading import load, load_adapted
from bert_jax.predict import adapted
from bert_jax.predict.__main__ import main as predict
from bert_jax.predict.adapted import Adapted
from bert_jax.predict.stream import stream
from bert_jax.run.model import write_run
from bert_jax.runtime.arriving import Arriving
from bert_jax.weights.adapters import AdapterWeights, adapted_kernels
from bert_jax.weights.parameters import sizes_of, tensors
from tests.predict.tiny import SIZES, pretraining_weights, random_texts
from tests.refusals import refused

NUM_LAYERS = SIZES['num_layers']
LORA = AdapterOptions(rank=2)


def drawn(rng, *shape):
    return rng.normal(0, 0.3, shape).astype(np.float32)


def with_head(base, head, num_labels, seed, *, pooler=False, **inference):
    """The base with a head of its own, and perhaps a pooler."""
    rng = np.random.default_rng(seed)
    hidden = SIZES['hidden_size']
    params = {name: x for name, x in base.params.items() if not name.startswith('cls/')}
    if head == 'question_answering':
        params |= {'cls/squad/kernel': drawn(rng, hidden, 2), 'cls/squad/bias': drawn(rng, 2)}
    else:
        params |= {'classifier/kernel': drawn(rng, hidden, num_labels),
                   'classifier/bias': drawn(rng, num_labels)}
    if pooler:
        params['bert/pooler/dense/kernel'] = drawn(rng, hidden, hidden)
    labels = () if head == 'question_answering' else tuple('abcdef'[:num_labels])
    return dataclasses.replace(
        base, params=params, head=head, labels=labels, inference=inference)


def with_options(weights, **options):
    return dataclasses.replace(weights, model=weights.model | options)


def with_bits(weights, seed):
    rng = np.random.default_rng(seed)
    params = {name: x + 0.3 * rng.normal(size=x.shape).astype(np.float32)
              if name.startswith('bert/e') and name.endswith('/bias') else x
              for name, x in weights.params.items()}
    return dataclasses.replace(
        weights, params=params, adapter=AdapterWeights(AdapterOptions('bitfit'), {}))


def with_lora(weights, seed):
    rng = np.random.default_rng(seed)
    sizes = sizes_of(weights.model)
    params: dict[str, Any] = {}
    for kernel in adapted_kernels(tensors(weights.model), LORA):
        for name, shape in kernel.shapes(LORA, sizes).items():
            params[name] = drawn(rng, *shape)
    return dataclasses.replace(weights, adapter=AdapterWeights(LORA, params))


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp('adapted')
    base = pretraining_weights(folder)
    one = with_head(base, 'classification', 2, 1)
    for name, weights in {
            'base': base, 'one': one,
            'three': with_head(base, 'classification', 3, 2, pooler=True),
            'many': with_head(base, 'multi_label', 4, 3),
            'dropped': with_options(
                with_head(base, 'classification', 2, 13), hidden_dropout=0.3,
                classifier_dropout=0.2),
            'short': with_head(base, 'classification', 2, 4, max_seq_length=8),
            'bits': with_bits(with_head(base, 'classification', 2, 5), 6),
            'lora': with_lora(with_head(base, 'classification', 2, 7), 8),
            'answers': with_head(base, 'question_answering', 2, 9),
            'others': with_head(base, 'question_answering', 2, 10),
            'tags': with_head(base, 'token_classification', 3, 11),
            'kinds': with_head(base, 'token_classification', 5, 12)}.items():
        write_run(folder / name, weights)
    return folder


@pytest.fixture
def passes(monkeypatch):
    """The jobs for which texts are streamed."""
    found = []

    def counted(model, texts, job):
        found.append(job)
        return stream(model, texts, job)

    monkeypatch.setattr(adapted, 'stream', counted)
    return found


def assert_close(found, expected):
    """Equal but for the last bits of numbers: programs that differ may add in another order."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x == (pytest.approx(y, abs=1e-6) if isinstance(y, float) else y)


CASES = {
    'heads': ('classify', ['one', 'three', 'many'], 1),
    'heads trained with other dropout': ('classify', ['one', 'dropped'], 1),
    'heads and a LoRA between them': ('classify', ['one', 'lora', 'three'], 2),
    'biases': ('classify', ['bits', 'one'], 2),
    'another length': ('classify', ['one', 'short'], 2),
    'questions': ('answer', ['answers', 'others'], 1),
    'tags': ('tag', ['tags', 'kinds'], 1),
}


@pytest.mark.parametrize(('command', 'names', 'num_passes'), CASES.values(), ids=CASES)
def test_each_says_what_it_says_by_itself(folders, passes, command, names, num_passes):
    texts: list[Any] = [*random_texts(6), '', ('a cat', 'the dog sees')]
    if command == 'answer':
        texts = [('red cat', text) for text in random_texts(6)] + ['no pair']
    every = load_adapted(folders / 'base', [folders / name for name in names])
    together = Adapted(dict(zip(names, every, strict=True)))
    found = list(getattr(together, f'iter_{command}')(Arriving(texts)))
    assert len(passes) == num_passes
    for name in names:
        alone = getattr(load(folders / name), command)(texts)
        for result, expected in zip(found, alone, strict=True):
            of_text = {key: x for key, x in result.items() if key not in ('adapters', 'error')}
            assert_close(of_text | result['adapters'][name], expected)


def test_several_heads_cost_one_pass_of_the_encoder(folders):
    models = load_adapted(folders / 'base', [folders / name for name in ('one', 'three', 'many')])
    rows = np.ones((2, 32), np.int32)
    batch = {'input_ids': rows, 'sequence_ids': rows, 'segment_ids': 0 * rows,
             'position_ids': np.arange(64, dtype=np.int32).reshape(2, 32) % 32,
             'cls_positions': rows[:, :1]}

    def flops(models):
        function = functools.partial(outputs_by_head, tuple(model.head for model in models))
        params = tuple(model.device_params for model in models)
        return jax.jit(function).lower(params, batch).compile().cost_analysis()['flops']

    assert flops(models) < 1.05 * flops(models[:1])


def test_what_is_equal_is_in_memory_once(folders):
    names = ['one', 'three', 'bits', 'lora']
    models = load_adapted(folders / 'base', [folders / name for name in names])
    one, *others = (flatten_dict(model.device_params, sep='/') for model in models)
    of_each = {}
    for name, params in zip(names[1:], others, strict=True):
        of_each[name] = {leaf for leaf, x in params.items() if x is not one[leaf]}
    head = {'classifier/kernel', 'classifier/bias'}
    assert of_each['three'] == {*head, 'bert/pooler/dense/kernel'}
    assert all(leaf.endswith('/bias') for leaf in of_each['bits'] - head)
    qkv = {f'bert/encoder/layer_{i}/attention/self/qkv/kernel' for i in range(NUM_LAYERS)}
    assert of_each['lora'] == head | qkv


def test_runs_are_named_as_adapters_on_the_command_line(folders, monkeypatch, capsys):
    monkeypatch.setattr('sys.argv', [
        'predict', 'classify', '--model', str(folders / 'base'), '--adapter', str(folders / 'one'),
        '--adapter', str(folders / 'three'), 'a red cat'])
    predict()
    result = json.loads(capsys.readouterr().out)
    (expected,) = load(folders / 'three').classify(['a red cat'])
    assert result['adapters'].keys() == {'one', 'three'}
    assert_close({'text': 'a red cat', **result['adapters']['three']}, expected)


@pytest.mark.parametrize(('name', 'message'), [
    ('thre', "did you mean '{}/three'?"),
    ('xyz', 'it is a folder of peft, with adapter_config'),
])
def test_an_adapter_that_is_not_there(folders, name, message):
    with refused(f'adapter {folders}/{name} does not exist', message.format(folders)):
        with_adapter(load_weights(folders / 'base'), folders / name)


@pytest.mark.parametrize(('change', 'message'), [
    (lambda x: {'params': jax.tree.map(lambda y: y + 1, x.params)},
     'bert/embeddings/LayerNorm/bias is not that of'),
    (lambda x: {'model': x.model | {'hidden_act': 'silu'}}, 'model.hidden_act is not that of'),
    (lambda x: {'params': with_bits(x, 1).params}, '/bias is not that of'),
], ids=['all trained', 'another activation', 'biases without their kind'])
def test_a_model_of_its_own_is_no_adapter(folders, tmp_path, change, message):
    weights = load_weights(folders / 'one')
    write_run(tmp_path / 'run', dataclasses.replace(weights, **change(weights)))
    with refused(message, 'a model of its own is named with --model'):
        with_adapter(load_weights(folders / 'base'), tmp_path / 'run')
