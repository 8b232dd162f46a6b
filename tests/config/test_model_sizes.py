"""Models by name: their sizes, and the number of their parameters."""

import jax
import pytest
from flax import linen as nn

from bert_jax.config import model_sizes
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.layers import ModelConfig
from tests.configs import changed


@pytest.mark.parametrize(('values', 'sizes'), [
    ({'name': 'base'}, (12, 768, 12, 3072)),
    ({'name': 'BERT-Large'}, (24, 1024, 16, 4096)),
    ({'name': 'uncased_L-4_H-512_A-8'}, (4, 512, 8, 2048)),
    ({'name': 'L-6_H-768_A-3'}, (6, 768, 3, 3072)),  # of the paper's Table 6
    ({'name': 'tiny', 'hidden_size': 64, 'num_layers': 5}, (5, 64, 2, 256)),
])
def test_models_by_name_whose_sizes_may_be_overridden(values, sizes):
    found = model_sizes(changed({f'model.{name}': value for name, value in values.items()}))
    assert tuple(found.values()) == sizes


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'count'), [  # with both heads, as google-research/bert counts
    ('tiny', 4_433_468), ('base', 110_106_428), ('large', 336_226_108),
])
def test_number_of_parameters(name, count):
    sizes = model_sizes(changed({'model.name': name}))
    config = ModelConfig(vocab_size=30522, **sizes)
    shapes = nn.meta.unbox(jax.eval_shape(Pretraining(config).init, jax.random.key(0)))
    padding = (config.padded_vocab_size - 30522) * (config.hidden_size + 1)
    assert sum(x.size for x in jax.tree.leaves(shapes)) - padding == count
