"""Model, loss, optimizer and train step against what google-research/bert itself computed."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip('tensorflow')  # reads the original's files

from bert_jax.corpus.records import RecordFiles
from bert_jax.foreign.tf1 import read_tf1
from bert_jax.heads.base import cross_entropy
from bert_jax.heads.masked_lm_loss import masked_lm_logits
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig
from bert_jax.step.optimizers import OptimizerOptions, make_optimizer
from bert_jax.step.schedules import ScheduleSegment, make_schedule
from bert_jax.step.step import TrainState, evaluate, make_eval_step, parameters_of
from bert_jax.weights.parameters import to_tree
from tests.tiny_models import fixed_step
from tests.train.toy import mesh

pytestmark = pytest.mark.slow

def model_at(prefix):
    """(config, parameters) of a checkpoint of the original."""
    weights = read_tf1(prefix)
    assert weights.head == 'pretraining' and weights.unused == ()
    config = ModelConfig(**weights.model)
    return config, to_tree(weights.params, config.padded_vocab_size)


@pytest.fixture(scope='module')
def small(shared_data):
    """(folder, task, parameters, the 30 batches) of the small reference model."""
    folder = shared_data / 'tf1_reference' / 'small'
    config, params = model_at(folder / 'init' / 'bert_model.ckpt')
    arrays = dict(np.load(folder / 'batches.npz'))
    arrays['sequence_ids'] = arrays.pop('input_mask')
    arrays['next_sentence_labels'] = arrays['next_sentence_labels'][..., 0]
    arrays['example_weights'] = np.ones(arrays['next_sentence_labels'].shape, np.float32)
    batches = [{name: x[i] for name, x in arrays.items()} for i in range(30)]
    return folder, Pretraining(config), params, batches


def test_forward_pass_of_the_original(small):
    folder, task, params, batches = small
    expected = np.load(folder / 'forward.npz')
    batch = batches[0]
    inputs = [batch[name] for name in ('input_ids', 'sequence_ids', 'segment_ids')]

    @jax.jit
    def compute(params):  # all at once, so that the compiler sees most layers once
        whole = Bert(task.config).apply({'params': params['bert']}, *inputs)
        out = task.outputs(params, batch) | whole
        nsp_loss, _ = cross_entropy(out['nsp_logits'], batch['next_sentence_labels'])
        return out | {
            'log_probs': jax.nn.log_softmax(masked_lm_logits(out['mlm_output'])),
            'nsp_log_probs': jax.nn.log_softmax(out['nsp_logits']), 'nsp_loss': nsp_loss}

    out = jax.device_get(compute(params))
    close = {'rtol': 0, 'atol': 1e-5}
    for name in ('embedding_output', 'pooled_output'):
        np.testing.assert_allclose(out[name], expected[name], err_msg=name, **close)
    real = batch['sequence_ids'] == 1  # outputs at padding do not matter
    np.testing.assert_allclose(
        out['sequence_output'][real], expected['sequence_output'][real], **close)
    for i, layer in enumerate(out['layers']):
        theirs = expected[f'encoder_layer_{i}'][real]
        np.testing.assert_allclose(layer[real], theirs, err_msg=str(i), **close)
    log_probs = out['log_probs'][..., :1024]
    np.testing.assert_allclose(
        log_probs.reshape(-1, 1024), expected['masked_lm_log_probs'], rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(
        out['nsp_log_probs'], expected['next_sentence_log_probs'], **close)
    np.testing.assert_allclose(
        out['nsp_loss'], expected['next_sentence_example_loss'], **close)


def test_thirty_training_steps_of_the_original(small):
    """Losses, gradient norms and final parameters of a whole run.

    The recorded rate of a step is the schedule's (0 at step 0), but the recorded parameters were
    updated with the next step's rate: in that TF1 session on a CPU, the step counter was increased
    before it was read for the rate. So the optimizer here uses the next step's rate as well.
    """
    folder, task, params, batches = small
    training = json.loads((folder / 'training.json').read_text())
    schedule = make_schedule([ScheduleSegment(
        0, training['num_train_steps'], training['learning_rate'], training['num_warmup_steps'])])
    optimizer = make_optimizer(
        OptimizerOptions('bert_adamw', weight_decay=training['weight_decay']),
        lambda step: schedule(step + 1), parameters_of(task))
    step = fixed_step(task, optimizer, schedule, mesh(), clip_norm=training['clip_norm'])
    params = jax.device_put(params)
    state = TrainState(jnp.int32(0), params, jax.jit(optimizer.init)(params))
    step = step.lower(state, batches[0]).compile()
    for i, (batch, theirs) in enumerate(zip(batches, training['steps'], strict=True)):
        state, metrics = step(state, batch)
        metrics = jax.device_get(metrics)
        mlm = metrics['mlm_loss'] / metrics['mlm_count']
        ours = [metrics['loss'], mlm, metrics['nsp_loss'] / 8, metrics['grad_norm'],
                metrics['learning_rate']]
        expected = [theirs[name] for name in ('loss', 'mlm', 'nsp', 'gn', 'lr')]
        np.testing.assert_allclose(ours, expected, rtol=1e-4, err_msg=f'step {i}')
    _, final = model_at(folder / 'final' / 'bert_model.ckpt')
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5), state.params, final)


def test_evaluation_reaches_the_figures_of_the_original(shared_data, tmp_path):
    """831 held-out rows, the last batch padded, with a BERT-Tiny that the original trained."""
    folder = shared_data / 'tf1_reference' / 'tiny_wikipedia'
    config, params = model_at(folder / 'bert_model.ckpt')
    task, files = Pretraining(config), RecordFiles.open(str(folder / 'eval.tfrecord'), tmp_path)
    rows = files.read(np.arange(831)) | {'example_weights': np.ones(831, np.float32)}
    rows = {name: np.pad(x, [(0, 9)] + [(0, 0)] * (x.ndim - 1)) for name, x in rows.items()}
    batches = [{name: x[start : start + 120] for name, x in rows.items()}
               for start in range(0, 840, 120)]
    # It computes for longer than it is compiled; higher levels compute as long.
    eval_step = make_eval_step(task, mesh()).lower(params, batches[0]).compile(
        {'xla_backend_optimization_level': 1})
    metrics = evaluate(task, eval_step, params, batches)
    for name, value in {'mlm_loss': 6.6657, 'mlm_accuracy': 0.1456, 'nsp_loss': 0.7115,
                        'nsp_accuracy': 0.6077}.items():
        assert metrics[name] == pytest.approx(value, abs=1e-4), name
