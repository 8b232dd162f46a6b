"""Encoders of BERT's family with random weights give the hidden states of transformers' classes."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig
from tests.tiny_models import jit

pytestmark = [pytest.mark.slow, pytest.mark.extras]

torch = pytest.importorskip('torch', reason='the extra [parity] is not installed')
transformers = pytest.importorskip('transformers', reason='the extra [parity] is not installed')

LENGTHS = (23, 11, 30)  # of the packed sequences of a row
SIZES = ModelConfig(
    vocab_size=130, num_layers=5, hidden_size=24, num_heads=3, intermediate_size=20,
    max_position_embeddings=64, hidden_act='gelu_erf')
THEIR_SIZES = {
    'vocab_size': 130, 'hidden_size': 24, 'num_hidden_layers': 5, 'num_attention_heads': 3,
    'intermediate_size': 20, 'max_position_embeddings': 64}


@dataclasses.dataclass(frozen=True)
class Family:
    """A class of transformers, and the options that make the model here the same.

    Attributes:
      make: returns their model.
      options: of the model here.
      names: regular expressions for their names of modules, with ours.
    """

    make: Callable[[], Any]
    options: dict[str, Any]
    names: dict[str, str]


BERT_NAMES = {
    r'^embeddings\.(\w+_embeddings)': r'embeddings/\1',
    r'^embeddings\.': 'embeddings/',
    r'^encoder\.layer\.(\d+)\.': r'encoder/layer_\1/',
    r'attention\.self\.(query|key|value)': r'attention/self/\1',
}
FAMILIES = {
    'RoBERTa': Family(
        lambda: transformers.RobertaModel(
            transformers.RobertaConfig(
                **{**THEIR_SIZES, 'max_position_embeddings': 66}, type_vocab_size=1,
                pad_token_id=1), add_pooling_layer=False),
        {'first_position': 2, 'type_vocab_size': 1, 'max_position_embeddings': 66,
         'layer_norm_eps': 1e-12},
        BERT_NAMES),
    'ELECTRA small': Family(
        lambda: transformers.ElectraModel(
            transformers.ElectraConfig(**THEIR_SIZES, embedding_size=10)),
        {'embedding_size': 10},
        BERT_NAMES),
    'DistilBERT': Family(
        lambda: transformers.DistilBertModel(transformers.DistilBertConfig(
            vocab_size=130, dim=24, n_layers=5, n_heads=3, hidden_dim=20,
            max_position_embeddings=64)),
        {'type_vocab_size': 0},
        {
            r'^embeddings\.(\w+_embeddings)': r'embeddings/\1',
            r'^embeddings\.': 'embeddings/',
            r'^transformer\.layer\.(\d+)\.': r'encoder/layer_\1/',
            r'attention\.q_lin': 'attention/self/query',
            r'attention\.k_lin': 'attention/self/key',
            r'attention\.v_lin': 'attention/self/value',
            r'attention\.out_lin': 'attention/output/dense',
            'sa_layer_norm': 'attention/output/LayerNorm',
            r'ffn\.lin1': 'intermediate/dense',
            r'ffn\.lin2': 'output/dense',
            'output_layer_norm': 'output/LayerNorm',
        }),
    'ModernBERT': Family(
        lambda: transformers.ModernBertModel(transformers.ModernBertConfig(
            **THEIR_SIZES, local_attention=8, pad_token_id=0, bos_token_id=2, eos_token_id=3,
            cls_token_id=2, sep_token_id=3)),
        {'pre_norm': True, 'gated': True, 'biases': False, 'positions': 'rotary',
         'type_vocab_size': 0, 'local_attention': 8, 'rotary_base': 160_000.0,
         'layer_norm_eps': 1e-5},
        {
            r'^embeddings\.tok_embeddings': 'embeddings/word_embeddings',
            r'^embeddings\.norm': 'embeddings/LayerNorm',
            r'^layers\.(\d+)\.': r'encoder/layer_\1/',
            r'attn\.Wqkv': 'attention/self/qkv',
            r'attn\.Wo': 'attention/output/dense',
            r'attn_norm': 'attention/LayerNorm',
            r'mlp_norm': 'intermediate/LayerNorm',
            r'mlp\.Wi': 'intermediate/dense',
            r'mlp\.Wo': 'output/dense',
            r'^final_norm': 'LayerNorm',
        }),
}


@pytest.fixture(scope='module', params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


@pytest.fixture(scope='module')
def theirs(family):
    torch.manual_seed(0)
    model = family.make().eval()
    with torch.no_grad():
        for name, x in model.named_parameters():
            x.normal_(0.0, 0.3)
            if 'norm' in name.lower() and name.endswith('weight'):
                x.add_(1.0)
    return model


@pytest.fixture(scope='module')
def config(family):
    return dataclasses.replace(SIZES, **family.options)


def our_params(family, config, state):
    """Their tensors as the tree here."""
    found = {}
    for name, x in state.items():
        module, _, leaf = name.rpartition('.')
        for theirs, ours in family.names.items():
            module = re.sub(theirs, ours, module)
        module = module.replace('.', '/')
        if leaf == 'bias':
            found[f'{module}/bias'] = x.numpy()
        elif module.endswith('_embeddings'):
            found[module] = x.numpy()
        elif x.ndim == 1:
            found[f'{module}/scale'] = x.numpy()
        else:
            found[f'{module}/kernel'] = x.numpy().T
    with_three = {name.rsplit('/', 2)[0] for name in found if name.endswith('/query/kernel')}
    for folder in with_three:
        for leaf in ('kernel', 'bias'):
            parts = [found.pop(f'{folder}/{part}/{leaf}') for part in ('query', 'key', 'value')]
            found[f'{folder}/qkv/{leaf}'] = np.concatenate(parts, axis=-1)
    return shaped(config, found)


def shaped(config, found):
    """The arrays with the dims here; the word table with its padding."""
    heads = (config.num_heads, config.head_dim)
    shapes = {
        'attention/self/qkv/kernel': (-1, 3, *heads),
        'attention/self/qkv/bias': (3, *heads),
        'attention/output/dense/kernel': (*heads, -1)}
    if config.gated:
        shapes['intermediate/dense/kernel'] = (config.hidden_size, 2, -1)
    words = found['embeddings/word_embeddings']
    missing = config.padded_vocab_size - len(words)
    found['embeddings/word_embeddings'] = np.pad(words, ((0, missing), (0, 0)))
    for name in found:
        for ending, shape in shapes.items():
            if name.endswith(ending):
                found[name] = found[name].reshape(shape)
    return unflatten_dict(found, sep='/')


def hidden_states(model, ids, mask):
    """Their last hidden states and those in between."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask),
                    output_hidden_states=True)
    return [x.numpy() for x in out.hidden_states]


def assert_same_states(found, expected):
    """Up to rounding: between layers with LayerNorm in front, states are not of size 1."""
    atol = 1e-5 * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def test_padded_and_packed_rows_have_transformers_hidden_states(family, config, theirs):
    params = our_params(family, config, theirs.state_dict())
    rng = np.random.default_rng(0)
    sequences = [rng.integers(4, 130, n) for n in LENGTHS]
    longest = max(LENGTHS)
    ids = np.stack([np.pad(x, (0, longest - len(x)), constant_values=1) for x in sequences])
    mask = (np.arange(longest) < np.array(LENGTHS)[:, None]).astype(np.int64)
    expected = hidden_states(theirs, ids, mask)

    encode = jit(lambda *x: Bert(config, pooled=False).apply({'params': params}, *x))
    padded = encode(ids, mask, 0 * ids)
    states = (padded['embedding_output'], *padded['layers'])
    for found, there in zip(states, expected, strict=True):
        assert_same_states(found[mask > 0], there[mask > 0])

    row = np.concatenate(sequences)[None]
    numbers = np.repeat([1, 2, 3], LENGTHS)[None]
    places = np.concatenate([np.arange(n) for n in LENGTHS])[None]
    packed = encode(row, numbers, 0 * row, None, places)
    assert_same_states(packed['sequence_output'][0], expected[-1][mask > 0])
