"""The name table: both directions, all shapes, scanned and unrolled; nothing is left out."""

import jax
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.model.heads import BertForPreTraining
from bert_jax.model.layers import ModelConfig
from bert_jax.weights.names import from_tree, sizes_of, tensors, to_tree, tree_shapes

MODELS = st.builds(
    lambda layers, heads, head_dim, intermediate, vocab, positions, types: {
        'num_layers': layers, 'num_heads': heads, 'hidden_size': heads * head_dim,
        'intermediate_size': intermediate, 'vocab_size': vocab,
        'max_position_embeddings': positions, 'type_vocab_size': types,
    },
    layers=st.integers(1, 12), heads=st.integers(1, 3), head_dim=st.integers(1, 3),
    intermediate=st.integers(1, 5), vocab=st.integers(1, 300), positions=st.integers(1, 5),
    types=st.integers(1, 3),
)


def some_params(model, num_labels=3):
    """Every parameter of the table, every number different."""
    params, first = {}, 0
    for tensor in tensors(model):
        shape = tensor.shape(sizes_of(model, num_labels))
        size = int(np.prod(shape))
        params[tensor.name] = np.arange(first, first + size, dtype=np.float32).reshape(shape)
        first += size
    return params


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert b[name].dtype == np.float32
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@settings(max_examples=60, deadline=None)
@given(MODELS, st.integers(1, 5), st.sampled_from(['tf1', 'huggingface']))
def test_every_array_comes_back_from_files(model, num_labels, form):
    sizes = sizes_of(model, num_labels)
    params = some_params(model, num_labels)
    files = {}
    for tensor in tensors(model):
        arrays = tensor.to_files(form, params[tensor.name])
        for name, x in zip(tensor.file_names(form), arrays, strict=True):
            assert name not in files
            assert x.shape == tensor.file_shape(form, sizes)
            assert x.flags.c_contiguous
            files[name] = x
    back = {
        tensor.name: tensor.from_files(form, [files[n] for n in tensor.file_names(form)], sizes)
        for tensor in tensors(model)
    }
    assert_same(params, back)


@settings(max_examples=60, deadline=None)
@given(MODELS, st.booleans(), st.integers(0, 200))
def test_every_array_comes_back_from_a_tree(model, scan_layers, padding):
    params = some_params(model)
    rows = model['vocab_size'] + padding
    tree = to_tree(params, padded_vocab_size=rows, scan_layers=scan_layers)
    assert ('layer' in tree['bert']['encoder']) == scan_layers
    for padded in (tree['bert']['embeddings']['word_embeddings'],
                   tree['cls']['predictions']['output_bias']):
        assert len(padded) == rows
        assert not padded[model['vocab_size']:].any()
    assert_same(params, from_tree(tree, model['vocab_size']))
    shapes = tree_shapes(tree, model['vocab_size'])
    assert shapes == {name: x.shape for name, x in params.items()}


@pytest.mark.parametrize('scan_layers', [False, True])
def test_the_tree_is_the_one_of_the_model(scan_layers):
    model = {'num_layers': 11, 'num_heads': 2, 'hidden_size': 4, 'intermediate_size': 6,
             'vocab_size': 130, 'max_position_embeddings': 5, 'type_vocab_size': 2}
    params = {name: x for name, x in some_params(model).items()
              if not name.startswith(('classifier/', 'cls/squad/'))}
    config = ModelConfig(**model, scan_layers=scan_layers)
    ones = np.ones((1, 4), np.int32)
    expected = nn.meta.unbox(jax.eval_shape(
        lambda: BertForPreTraining(config).init(jax.random.key(0), ones, ones, ones, ones)
    ))['params']
    tree = to_tree(
        params, padded_vocab_size=config.padded_vocab_size, scan_layers=scan_layers
    )
    assert jax.tree.map(np.shape, tree) == jax.tree.map(lambda x: x.shape, expected)
    if scan_layers:  # ten comes after two
        tenth = tree['bert']['encoder']['layer']['output']['dense']['bias'][10]
        np.testing.assert_array_equal(tenth, params['bert/encoder/layer_10/output/dense/bias'])


def test_what_an_array_in_a_file_means():
    """By hand: which number of a file is which of ours."""
    by_name = {tensor.name: tensor for tensor in tensors({'num_layers': 1})}
    sizes = {'H': 6, 'N': 2, 'D': 3, 'L': 2}
    query, key, value = (np.arange(36, dtype=np.float32).reshape(6, 6) + 100 * i for i in range(3))
    qkv = by_name['bert/encoder/layer_0/attention/self/qkv/kernel']
    assert qkv.file_names('tf1') == tuple(
        f'bert/encoder/layer_0/attention/self/{part}/kernel' for part in ('query', 'key', 'value'))
    ours = qkv.from_files('tf1', [query, key, value], sizes)  # [in, out] there
    assert ours.shape == (6, 3, 2, 3)
    assert ours[4, 1, 1, 2] == key[4, 1 * 3 + 2]
    ours = qkv.from_files('huggingface', [query, key, value], sizes)  # [out, in] there
    assert ours[4, 2, 1, 0] == value[1 * 3 + 0, 4]
    out = by_name['bert/encoder/layer_0/attention/output/dense/kernel']
    assert out.from_files('tf1', [query], sizes)[1, 2, 5] == query[1 * 3 + 2, 5]
    assert out.from_files('huggingface', [query], sizes)[1, 2, 5] == query[5, 1 * 3 + 2]
    classifier = by_name['classifier/kernel']
    rows = np.arange(12, dtype=np.float32).reshape(2, 6)
    assert classifier.file_names('tf1') == ('output_weights',)
    for form in ('tf1', 'huggingface'):
        np.testing.assert_array_equal(classifier.from_files(form, [rows], sizes), rows.T)
