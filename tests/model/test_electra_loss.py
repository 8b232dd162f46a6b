"""The loss of `configs/electra_pretrain.py` beside a transcription of it in PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict
from jax.tree_util import DictKey, GetAttrKey, tree_leaves_with_path

from bert_jax.kernels import dropout as drop
from bert_jax.model.layers import ModelConfig, declared_parameters
from bert_jax.step.optimizers import OptimizerOptions, make_optimizer
from tests.configs import module_of
from tests.tiny_models import jit, random_like

ELECTRA = module_of('electra_pretrain')
VOCAB, LENGTH, SLOTS, MASK = 50, 12, 4, 1
CONFIG = ModelConfig(
    vocab_size=VOCAB, num_layers=2, hidden_size=32, num_heads=4, intermediate_size=48,
    max_position_embeddings=16, embedding_size=24, hidden_act='gelu_erf', hidden_dropout=0.0,
    attention_dropout=0.0)
HEAD = ELECTRA.ElectraPretraining(CONFIG, generator_share=0.5)


def masked_batch():
    """Four rows, of which two are padded, with one to four masked words; of some the word stays."""
    rng = np.random.default_rng(0)
    lengths = np.array([12, 9, 12, 7])
    ids = rng.integers(5, VOCAB, (4, LENGTH))
    positions = np.zeros((4, SLOTS), np.int32)
    weights = np.zeros((4, SLOTS), np.float32)
    for row, count in enumerate((4, 2, 3, 1)):
        positions[row, :count] = np.sort(rng.permutation(np.arange(1, lengths[row]))[:count])
        weights[row, :count] = 1
    labels = np.take_along_axis(ids, positions, axis=1) * (weights > 0)
    masked = ids.copy()
    for row, slot in np.argwhere(weights):
        if (row, slot) != (0, 1):
            masked[row, positions[row, slot]] = MASK
    is_token = np.arange(LENGTH) < lengths[:, None]
    return {
        'input_ids': masked * is_token, 'sequence_ids': is_token.astype(np.int32),
        'segment_ids': ((np.arange(LENGTH) > 5) & is_token).astype(np.int32),
        'masked_lm_positions': positions,
        'masked_lm_ids': labels, 'masked_lm_weights': weights,
        'example_weights': np.ones(4, np.float32)}


@pytest.mark.parametrize(
    ('hidden_size', 'num_heads', 'share', 'expected'), [
        (256, 4, 1 / 4, (64, 1)), (768, 12, 1 / 3, (256, 4)), (1024, 16, 1 / 4, (256, 4)),
        (128, 2, 1 / 4, (32, 1))],
    ids=['small', 'base', 'large', 'tiny'])
def test_its_generator_has_the_width_of_the_original(hidden_size, num_heads, share, expected):
    """That of google-research/electra: a share of the width, with a head for each 64 dims."""
    config = ModelConfig(
        vocab_size=100, num_layers=2, hidden_size=hidden_size, num_heads=num_heads,
        intermediate_size=4 * hidden_size)
    generator = ELECTRA.generator_config(config, share)
    assert (generator.hidden_size, generator.num_heads) == expected
    assert generator.intermediate_size == 4 * generator.hidden_size


def test_muon_has_the_matrices_of_both_models_layers():
    boxed = jax.eval_shape(HEAD.init, jax.random.key(0))
    params = nn.meta.unbox(boxed)
    optimizer = make_optimizer(
        OptimizerOptions('muon'), lambda step: 0.1, declared_parameters(boxed))
    found = set()
    for path, _ in tree_leaves_with_path(jax.eval_shape(optimizer.init, params)):
        if GetAttrKey('momentum') in path:
            keys = [part.key for part in path if isinstance(part, DictKey)]
            found.add('/'.join(key for key in keys if isinstance(key, str)))
    matrices = {name for name in flatten_dict(params, sep='/')
                if '/encoder/layer_' in name and name.endswith('/kernel')}
    assert found == matrices and len(matrices) == 2 * 2 * 4  # models, layers, kernels


class Transcription:
    """The two models and their loss, from the paper and BERT's; parameters by their paths here."""

    def __init__(self, torch, params):
        self.torch = torch
        self.params = {
            name: torch.tensor(np.asarray(x), dtype=torch.float64, requires_grad=True)
            for name, x in params.items()}

    def dense(self, name, x, num_in=1):
        kernel = self.params[f'{name}/kernel']
        y = self.torch.tensordot(x, kernel, dims=num_in)
        return y + self.params[f'{name}/bias']

    def layer_norm(self, name, x):
        scale, bias = self.params[f'{name}/scale'], self.params[f'{name}/bias']
        return self.torch.nn.functional.layer_norm(x, scale.shape, scale, bias, eps=1e-12)

    def embed(self, ids, batch):
        tables = [self.params[f'bert/embeddings/{name}_embeddings']
                  for name in ('word', 'token_type', 'position')]
        summed = tables[0][ids] + tables[1][batch['segment_ids']] + tables[2][:LENGTH]
        return self.layer_norm('bert/embeddings/LayerNorm', summed)

    def encode(self, name, x, is_token):
        for layer in range(CONFIG.num_layers):
            at = f'{name}/encoder/layer_{layer}'
            qkv = self.dense(f'{at}/attention/self/qkv', x)
            query, key, value = (qkv[:, :, i].transpose(1, 2) for i in range(3))
            scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
            scores = scores.masked_fill(~is_token[:, None, None, :], -1e9)
            context = (scores.softmax(-1) @ value).transpose(1, 2)
            y = self.dense(f'{at}/attention/output/dense', context, num_in=2)
            x = self.layer_norm(f'{at}/attention/output/LayerNorm', x + y)
            y = self.gelu(self.dense(f'{at}/intermediate/dense', x))
            y = self.dense(f'{at}/output/dense', y)
            x = self.layer_norm(f'{at}/output/LayerNorm', x + y)
        return x

    def gelu(self, x):
        return self.torch.nn.functional.gelu(x)

    def word_logits(self, batch):
        """Of the generator [B, P, V]."""
        x = self.embed(batch['input_ids'], batch)
        x = self.dense('generator/embeddings_project', x)
        x = self.encode('generator', x, batch['sequence_ids'] > 0)
        rows = self.torch.arange(len(x))[:, None]
        x = x[rows, batch['masked_lm_positions']]
        x = self.gelu(self.dense('generator/predictions/transform/dense', x))
        x = self.layer_norm('generator/predictions/transform/LayerNorm', x)
        table = self.params['bert/embeddings/word_embeddings'][:VOCAB]
        return x @ table.T + self.params['generator/predictions/output_bias'][:VOCAB]

    def replaced_logits(self, ids, batch):
        """Of the discriminator [B, S]."""
        x = self.dense('bert/embeddings_project', self.embed(ids, batch))
        x = self.encode('bert', x, batch['sequence_ids'] > 0)
        x = self.gelu(self.dense('discriminator_predictions/dense', x))
        return self.dense('discriminator_predictions/dense_prediction', x)[..., 0]

    def loss(self, batch, noise):
        """The loss, the sums of both models' losses, and the number of replaced tokens."""
        functional = self.torch.nn.functional
        logits = self.word_logits(batch)
        is_slot = batch['masked_lm_weights'] > 0
        of_words = functional.cross_entropy(
            logits[is_slot], batch['masked_lm_ids'][is_slot], reduction='sum')
        drawn = (logits.detach() + self.torch.tensor(noise[..., :VOCAB])).argmax(-1)
        original = batch['input_ids'].clone()
        replaced = batch['input_ids'].clone()
        for row, slot in is_slot.nonzero():
            position = batch['masked_lm_positions'][row, slot]
            original[row, position] = batch['masked_lm_ids'][row, slot]
            replaced[row, position] = drawn[row, slot]
        labels = (replaced != original).to(self.torch.float64)
        is_token = batch['sequence_ids'] > 0
        of_tokens = functional.binary_cross_entropy_with_logits(
            self.replaced_logits(replaced, batch)[is_token], labels[is_token], reduction='sum')
        loss = of_words / is_slot.sum() + 50 * of_tokens / is_token.sum()
        return loss, of_words, of_tokens, labels.sum()


@pytest.mark.extras
def test_its_loss_and_gradients_are_those_of_a_transcription():
    torch = pytest.importorskip('torch')
    batch = masked_batch()
    params = random_like(jax.eval_shape(HEAD.init, jax.random.key(0)), scale=0.3)
    likely = batch['masked_lm_ids'][0, 0]  # so that it is drawn in its own place, too
    biases = params['generator']['predictions']
    biases['output_bias'][likely] += 8.0
    dropout_keys_Bx2 = drop.dropout_keys(0, 7, jnp.arange(4))

    def loss_and_sums(params):
        arrays = {name: jnp.asarray(x) for name, x in batch.items()}
        return HEAD.loss(params, arrays, HEAD.totals(arrays), dropout_keys_Bx2)

    (loss, sums), gradients = jit(jax.value_and_grad(loss_and_sums, has_aux=True))(params)

    theirs = Transcription(torch, flatten_dict(params, sep='/'))
    noise = drop.gumbel(dropout_keys_Bx2, (SLOTS, CONFIG.padded_vocab_size), drop.HEAD)
    tensors = {name: torch.tensor(x) for name, x in batch.items()}
    expected, of_words, of_tokens, num_replaced = theirs.loss(tensors, np.asarray(noise))
    expected.backward()

    assert 3 <= num_replaced <= 9  # of ten words, some were drawn in their own place
    assert float(sums['replaced_found'] + sums['replaced_missed']) == num_replaced
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert sums['mlm_loss'] == pytest.approx(of_words.item(), rel=1e-5)
    assert sums['replaced_loss'] == pytest.approx(of_tokens.item(), rel=1e-5)
    found = flatten_dict(gradients, sep='/')
    assert found.keys() == theirs.params.keys()
    for name, parameter in theirs.params.items():
        np.testing.assert_allclose(
            found[name], parameter.grad.numpy(), rtol=1e-3, atol=2e-5, err_msg=name)
