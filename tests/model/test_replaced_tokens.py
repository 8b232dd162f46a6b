"""The head of ELECTRA's discriminator: transformers' logits, the loss, and its files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config.bert_config import OPTIONS
from bert_jax.foreign import load_weights
from bert_jax.foreign.families.bert import BERT
from bert_jax.foreign.huggingface import write_huggingface
from bert_jax.heads import part_of
from bert_jax.heads.replaced_tokens import DISCRIMINATOR, ReplacedTokens, replaced_loss
from bert_jax.heads.tensors import Form
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig
from bert_jax.run.model import write_run
from bert_jax.runtime.errors import InputError
from bert_jax.weights.parameters import from_tree, sizes_of, tensors, to_tree
from tests.predict.tiny import pretraining_weights
from tests.tiny_models import jit, random_like

CONFIG = ModelConfig(
    vocab_size=100, num_layers=2, hidden_size=32, num_heads=4, intermediate_size=64,
    max_position_embeddings=64, initializer_range=0.2, hidden_act='gelu_erf')


def batch_of(ids):
    return {
        'input_ids': ids,
        'sequence_ids': jnp.ones_like(ids),
        'segment_ids': jnp.zeros_like(ids),
    }


@pytest.mark.extras
def test_its_logits_are_those_of_transformers():
    torch = pytest.importorskip('torch')
    transformers = pytest.importorskip('transformers')
    torch.manual_seed(0)
    theirs = transformers.ElectraForPreTraining(transformers.ElectraConfig(
        vocab_size=100, embedding_size=32, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=64, max_position_embeddings=64,
        initializer_range=0.2)).eval()
    arrays = {name.replace('electra.', 'bert.', 1): x.detach().numpy()
              for name, x in theirs.named_parameters()}
    model = {option.name: getattr(CONFIG, option.name) for option in OPTIONS}
    sizes = sizes_of(model)
    params = {}
    for tensor in tensors(model):
        if part_of(tensor.name) == DISCRIMINATOR:
            module, _, leaf = tensor.name.rpartition('/')
            name = f"{module.replace('/', '.')}.{leaf.replace('kernel', 'weight')}"
            form = Form((name,), is_transposed=leaf == 'kernel')
        elif part_of(tensor.name) is None:
            form = BERT.forms_in_any(BERT.architectures[-1])(tensor)
        else:
            continue
        params[tensor.name] = tensor.from_files(
            form, [arrays.pop(name) for name in form.names], sizes)
    assert not arrays
    ids = np.random.default_rng(0).integers(0, 100, (3, 20))
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    tree = to_tree(params, CONFIG.padded_vocab_size)
    found = jit(ReplacedTokens(CONFIG).outputs)(tree, batch_of(ids))
    np.testing.assert_allclose(found['logits'], expected, atol=1e-5)


def test_an_export_computes_the_logits_of_training():
    head = ReplacedTokens(CONFIG)
    params = random_like(jax.eval_shape(head.init, jax.random.key(0)), scale=0.1)
    batch = batch_of(np.random.default_rng(1).integers(0, 100, (2, 8)))

    @jit
    def exported_and_trained(params):
        hidden = Bert(CONFIG, pooled=False).apply({'params': params['bert']}, *batch.values())
        return (head.outputs_from_hidden(params, hidden['sequence_output'], None)['logits'],
                head.outputs(params, batch)['logits'])

    found, expected = exported_and_trained(params)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_loss_is_the_binary_cross_entropy():
    logits = np.float32([[2.0, -1.0, 0.5, -30.0, 0.0, 0.0]])
    replaced = np.array([[1, 0, 0, 1, 1, 0]])
    losses, correct = jit(replaced_loss)(logits, replaced)
    probabilities = 1 / (1 + np.exp(-np.asarray(logits, np.float64)))
    likelihoods = np.where(replaced == 1, probabilities, 1 - probabilities)
    np.testing.assert_allclose(losses, -np.log(likelihoods), rtol=1e-5)
    np.testing.assert_array_equal(correct, [[1, 1, 0, 0, 0, 1]])


def test_tokens_without_weight_do_not_count():
    head = ReplacedTokens(CONFIG)
    labels = {
        'token_labels': np.array([[1, 0, 1, 0]]), 'token_weights': np.float32([[1, 1, 0, 0]]),
        'sequence_ids': np.ones((1, 4), np.int32)}
    outputs = {'logits': np.float32([[5, 5, -5, 5]])}
    loss, sums = jax.device_get(
        jit(lambda: head.loss_of(outputs, labels, head.totals(labels)))())
    assert loss == pytest.approx((np.log1p(np.exp(-5)) + np.log1p(np.exp(5))) / 2, rel=1e-5)
    assert head.score(sums) == {'accuracy': 0.5}


@pytest.fixture
def discriminator(tmp_path):
    """A model with this head, as a run directory, and its parameters."""
    weights = pretraining_weights(tmp_path)
    config = ModelConfig(**weights.model)
    tree = random_like(jax.eval_shape(ReplacedTokens(config).init, jax.random.key(0)))
    params = {name: np.asarray(x) for name, x in from_tree(tree, config.vocab_size).items()}
    weights = weights.__class__(**vars(weights) | {'params': params, 'head': 'replaced_tokens'})
    write_run(tmp_path / 'run', weights)
    return tmp_path / 'run', params


def test_a_run_is_read_with_its_head(discriminator):
    run, params = discriminator
    weights = load_weights(run)
    assert weights.head == 'replaced_tokens'
    assert weights.params.keys() == params.keys()
    for name, array in params.items():
        np.testing.assert_array_equal(weights.params[name], array)


def test_it_is_not_written_as_a_bert(discriminator, tmp_path):
    with pytest.raises(InputError, match='no class of BERT'):
        write_huggingface(tmp_path / 'folder', load_weights(discriminator[0]))
    assert not (tmp_path / 'folder').exists()
