"""Models of the library: from weights and from a config, their heads and labels, and saving."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bert_jax
from bert_jax.foreign import load_weights
from bert_jax.heads import HEADS
from bert_jax.model.layers import ModelConfig
from tests.api.recorded_models import assert_same_outputs, model_and_batch, outputs
from tests.conftest import RECORDED

CONFIG = bert_jax.BertConfig(
    vocab_size=40, num_layers=1, hidden_size=8, num_heads=2, intermediate_size=12,
    max_position_embeddings=16)


def test_parameters_are_those_of_the_projects_head():
    bert, _, _ = model_and_batch('classification')
    weights = load_weights(RECORDED / 'classification')
    head = HEADS['classification'](ModelConfig(**weights.model), 3)
    declared = jax.eval_shape(head.init, jax.random.key(0))
    shapes = jax.tree.map(lambda x: x.shape, jax.tree.map(
        lambda x: x.value, declared, is_leaf=lambda x: hasattr(x, 'names')))
    assert jax.tree.map(lambda x: x.shape, bert.params) == shapes
    assert bert.labels == ('negative', 'neutral', 'positive')
    assert bert.fresh == ()


def test_a_head_that_the_weights_lack_is_fresh_and_said():
    with pytest.warns(UserWarning, match='starts fresh: classifier/.*: train the model before'):
        bert = bert_jax.from_pretrained(
            RECORDED / 'base', head='classification', labels=['no', 'yes'], seed=3)
    assert bert.fresh == ('classifier/bias', 'classifier/kernel')
    assert bert.labels == ('no', 'yes')
    base, batch, _ = model_and_batch('base')
    jax.tree.map(np.testing.assert_array_equal, bert.params['bert'], base.params['bert'])
    assert outputs(bert, batch)['logits'].shape == (3, 2)
    with pytest.warns(UserWarning):
        other = bert_jax.from_pretrained(
            RECORDED / 'base', head='classification', num_labels=2, seed=4)
    assert other.labels == ('LABEL_0', 'LABEL_1')
    kernels = [each.params['classifier']['kernel'] for each in (bert, other)]
    assert np.abs(kernels[0] - kernels[1]).max() > 0


def test_a_part_of_the_pretraining_heads():
    """Of weights that have both: what transformers' classes of the part compute."""
    _, batch, expected = model_and_batch('pretraining')
    for head, output in (
            ('masked_lm', 'prediction_logits'), ('next_sentence', 'seq_relationship_logits')):
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            part = bert_jax.from_pretrained(RECORDED / 'pretraining', head=head)
        assert_same_outputs(outputs(part, batch), {'logits': expected[output]}, batch)


def test_saved_and_read_again(tmp_path):
    bert, batch, expected = model_and_batch('classification')
    doubled = jax.tree.map(lambda x: 2 * x, jax.device_get(bert.params))
    assert bert.save(tmp_path / 'same') == []
    bert.save(tmp_path / 'doubled', doubled)
    same = bert_jax.from_pretrained(tmp_path / 'same')
    assert same.labels == bert.labels
    assert_same_outputs(outputs(same, batch), expected, batch)
    again = bert_jax.from_pretrained(tmp_path / 'doubled')
    jax.tree.map(np.testing.assert_array_equal, again.params, doubled)
    assert bert_jax.load(tmp_path / 'same').classify(['a cat'])[0]['label'] in bert.labels
    with pytest.raises(bert_jax.InputError, match='is there already'):
        bert.save(tmp_path / 'same')


@pytest.mark.parametrize(('change', 'message'), [
    (lambda params: {'encoder': params}, 'params lack bert/'),
    (lambda params: {}, 'params lack bert/'),
    (lambda params: jax.tree.map(lambda x: np.stack([x, x]), params), 'has the shape [2, '),
])
def test_other_parameters_are_not_saved(tmp_path, change, message):
    bert = bert_jax.from_config('L-1_H-32_A-2', 'encoder', vocab_size=20)
    with pytest.raises(bert_jax.InputError, match=re.escape(message)):
        bert.save(tmp_path / 'm', change(bert.params))
    assert not (tmp_path / 'm').exists()


def test_half_precision_is_saved_in_float32(tmp_path):
    bert = bert_jax.from_config('L-1_H-32_A-2', 'encoder', vocab_size=20)
    halved = jax.tree.map(lambda x: x.astype(jnp.bfloat16), jax.device_get(bert.params))
    bert.save(tmp_path / 'm', halved)
    read = bert_jax.from_pretrained(tmp_path / 'm').params
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y.astype(np.float32)), read, halved)


def test_new_weights_follow_from_the_seed():
    first, same, other = (
        bert_jax.from_config(CONFIG, 'masked_lm', seed=seed) for seed in (1, 1, 2))
    jax.tree.map(np.testing.assert_array_equal, first.params, same.params)
    words = [each.params['bert']['embeddings']['word_embeddings'] for each in (first, other)]
    assert np.abs(words[0] - words[1]).max() > 0
    np.testing.assert_array_equal(words[0][40:], 0.0)  # padding rows
    assert abs(float(np.std(words[0][:40])) - 0.02) < 0.004


def test_a_named_size_takes_its_words_from_the_vocabulary():
    vocab_file = RECORDED / 'base' / 'vocab.txt'
    bert = bert_jax.from_config('L-1_H-8_A-2', 'encoder', vocab_file=vocab_file)
    config = bert.module.config
    assert (config.vocab_size, config.num_layers, config.intermediate_size) == (40, 1, 32)
    assert bert.tokenizer(['a']).keys() == {'input_ids', 'attention_mask', 'token_type_ids'}
    assert set(bert.fresh) == {
        name for name in bert.fresh if name.startswith('bert/')}


def pretrained(**arguments):
    return lambda: bert_jax.from_pretrained(RECORDED / 'base', **arguments)


def configured(config=CONFIG, **arguments):
    return lambda: bert_jax.from_config(config, **arguments)


REFUSED = [
    (pretrained(head='clasification'), "did you mean 'classification'.*masked_lm"),
    (pretrained(head='classification'), "head='classification' needs num_labels=N"),
    (pretrained(head='classification', num_labels=1), "num_labels=1 .* from 2 .*'regression'"),
    (pretrained(head='classification', num_labels=3, labels=['a', 'b']), 'num_labels=3 says'),
    (pretrained(head='classification', labels=[0, 1]), 'must be a list of names'),
    (pretrained(head='classification', labels={0: 'no', 1: 'yes'}), 'must be a list of names'),
    (pretrained(head='classification', labels='ab'), 'must be a list of names'),
    (pretrained(head='classification', labels=2), 'must be a list of names'),
    (pretrained(head='question_answering', num_labels=2), 'has no labels: leave num_labels'),
    (pretrained(dtype='float16'), "dtype='float16' must be 'float32' or 'bfloat16'"),
    (pretrained(remat='some'), "remat='some' is unknown: none, dots, full"),
    (lambda: bert_jax.from_pretrained('nowhere'), 'nowhere does not exist'),
    (lambda: bert_jax.from_pretrained(3.5), 'path=3.5 must be a path'),
    (lambda: bert_jax.load(b'x'), "path=b'x' must be a path"),
    (pretrained(vocab_file=3), 'vocab_file=3 must be a path'),
    (lambda: bert_jax.from_pretrained('nowhere', []), r'head=\[\] is unknown'),
    (lambda: bert_jax.train_run({'a': 1}, 'x'), 'config=.* must be the name of a config'),
    (lambda: bert_jax.evaluate_run(['x', 3], 'y'), r'runs\[1\]=3 must be a path'),
    (configured('huge'), "config='huge' is unknown"),
    (configured('tiny'), "config='tiny' does not say how many words"),
    (configured(vocab_size=7), 'vocab_size=7 is for a named size'),
    (configured(bert_jax.BertConfig(
        vocab_size=9, num_layers=1, hidden_size=9, num_heads=2, intermediate_size=9)),
     'num_heads=2 does not divide hidden_size=9'),
    (lambda: bert_jax.from_config(CONFIG, 'encoder').tokenizer,
     'has no vocabulary: give vocab_file=FILE'),
]


@pytest.mark.parametrize('make, message', REFUSED)
def test_what_is_refused(make, message):
    with pytest.raises(bert_jax.InputError, match=message):
        make()


def test_meshes_that_are_refused():
    bert, _, _ = model_and_batch('base')
    for axis, kind, message in (
            ('rows', jax.sharding.AxisType.Auto, "axis 'rows': name its axes.*data, fsdp, tensor"),
            ('data', jax.sharding.AxisType.Explicit, "'data' of the mesh is Explicit")):
        mesh = jax.make_mesh((2,), (axis,), (kind,), devices=jax.devices()[:2])
        with pytest.raises(bert_jax.InputError, match=message):
            bert.shardings(mesh)
