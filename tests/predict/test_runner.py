"""Packed rows through the encoder and the heads, against what transformers recorded and against
one sequence at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from bert_jax.model.encoder import Bert, Pooler
from bert_jax.predict import heads
from bert_jax.predict.api import Model
from bert_jax.predict.rows import Tokens
from bert_jax.predict.runner import each_position, each_sequence, each_token


def recorded_sequences(arrays, positions=()):
    """The recorded rows without their padding, and which of the recorded tokens those are."""
    ids, mask, types = (
        arrays[name].reshape(-1, arrays[name].shape[-1])
        for name in ('input_ids', 'attention_mask', 'token_type_ids')
    )
    lengths = mask.sum(1)
    return [
        Tokens(row[:n], int(n - kind[:n].sum()), np.array(positions, int), np.zeros(
            len(positions), int))
        for row, kind, n in zip(ids, types, lengths, strict=True)
    ], lengths


def compare(ours, theirs, lengths, **tolerance):
    assert len(ours) == len(theirs) > 0
    for x, y, n in zip(ours, theirs, lengths, strict=True):
        np.testing.assert_allclose(x, y[:n], **({'rtol': 1e-5, 'atol': 2e-5} | tolerance))


@pytest.mark.parametrize('name', ['base', 'base_bfloat16'])
def test_hidden_states_and_pooled_vectors_of_transformers(name):
    model, arrays = tiny.recorded(name)
    sequences, lengths = recorded_sequences(arrays)
    states = model.runner.run(sequences, each_token(heads.token_vectors), (-1, -2, -3))
    compare([x[:, 0] for x in states], arrays['last_hidden_state'], lengths)
    # What the pooler makes of [CLS].
    cls = jnp.stack([x[0, 0] for x in states])
    pooled = Pooler(model.config).apply({'params': model.params['bert']['pooler']}, cls)
    np.testing.assert_allclose(pooled, arrays['pooler_output'], rtol=1e-5, atol=2e-5)
    means = model.runner.run(sequences, each_sequence(heads.mean_vectors))
    for mean, x in zip(means, states, strict=True):
        np.testing.assert_allclose(mean[0], x[:, 0].mean(0), rtol=1e-5, atol=1e-5)


def test_masked_lm_of_transformers():
    for name, output in (('masked_lm', 'logits'), ('pretraining', 'prediction_logits')):
        model, arrays = tiny.recorded(name)
        sequences, lengths = recorded_sequences(arrays, range(5))
        params, config = model.runner.params, model.config
        top = model.runner.run(sequences, each_position(
            lambda x, at, _: heads.masked_lm_top(params, x, at, config=config, num=40)))  # noqa: B023
        log_probs = np.asarray(jax.nn.log_softmax(arrays[output]))
        for (probabilities, ids), theirs in zip(top, log_probs, strict=True):
            expected = np.take_along_axis(np.exp(theirs[:5]), ids, axis=-1)
            np.testing.assert_allclose(probabilities, expected, rtol=1e-4, atol=1e-6)
            assert (np.sort(ids, axis=1) == np.arange(40)).all()
            assert (np.diff(probabilities, axis=1) <= 0).all()
        asked = [Tokens(t.ids, t.first_length, t.positions, t.ids[:5]) for t in sequences]
        found = model.runner.run(asked, each_position(
            lambda x, at, of: heads.masked_lm_log_probability(params, x, at, of, config=config)))  # noqa: B023
        for log_probability, tokens, theirs in zip(found, asked, log_probs, strict=True):
            np.testing.assert_allclose(
                log_probability, theirs[np.arange(5), tokens.ids[:5]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(('name', 'path', 'output'), [
    ('pretraining', ('cls', 'seq_relationship'), 'seq_relationship_logits'),
    ('classification', ('classifier',), 'logits'),
    ('regression', ('classifier',), 'logits'),
    ('multiple_choice', ('classifier',), 'logits'),
])
def test_pooled_heads_of_transformers(name, path, output):
    model, arrays = tiny.recorded(name)
    sequences, _ = recorded_sequences(arrays, [0])
    logits = model.runner.run(sequences, each_position(
        lambda x, at, _: heads.pooled_logits(
            model.runner.params, x, at, config=model.config, path=path)))
    expected = arrays[output].reshape(len(sequences), -1)
    np.testing.assert_allclose(np.concatenate(logits), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(('name', 'path', 'outputs'), [
    ('token_classification', ('classifier',), ('logits',)),
    ('question_answering', ('cls', 'squad'), ('start_logits', 'end_logits')),
])
def test_token_heads_of_transformers(name, path, outputs):
    model, arrays = tiny.recorded(name)
    sequences, lengths = recorded_sequences(arrays)
    logits = model.runner.run(sequences, each_token(
        lambda states: heads.token_logits(
            model.runner.params, states[0], config=model.config, path=path)))
    expected = [arrays[output] for output in outputs]
    expected = np.stack(expected, -1) if len(outputs) > 1 else expected[0]
    compare(logits, expected, lengths)


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    return Model(tiny.pretraining_weights(tmp_path_factory.mktemp('tiny')))


@pytest.fixture(scope='module')
def sequences():
    rng = np.random.default_rng(1)
    lengths = np.concatenate([rng.integers(2, 20, 150), rng.integers(20, 49, 30)])
    rng.shuffle(lengths)
    return [
        Tokens(rng.integers(0, len(tiny.VOCAB), n).astype(np.int32), int(rng.integers(1, n + 1)),
               np.array([n // 2]), np.array([3]))
        for n in lengths
    ]


def test_packed_sequences_are_as_if_alone(model, sequences):
    """Each sequence alone in a row, filled up with padding: all layers."""
    bert = Bert(model.config)
    alone = jax.jit(lambda *x: bert.apply({'params': model.params['bert']}, *x))
    packed = model.runner.run(sequences, each_token(heads.token_vectors), (-1, -2, -3, -4))
    for tokens, states in zip(sequences[::6], packed[::6], strict=True):
        n = len(tokens.ids)
        ids = np.pad(tokens.ids, (0, 48 - n))[None]
        segments = (np.arange(48) >= tokens.first_length).astype(np.int32)[None]
        out = alone(ids, (np.arange(48) < n).astype(np.int32)[None], segments)
        expected = [*reversed(out['layers']), out['embedding_output']]
        np.testing.assert_allclose(
            states, np.stack([x[0, :n] for x in expected], 1), rtol=1e-4, atol=1e-4)


def test_stream_keeps_items_together_and_in_order(model, sequences, monkeypatch):
    """Chunks end in the middle of items; items may have no sequences or many."""
    monkeypatch.setattr(model.runner, '_tokens_per_batch', 16)  # chunks of 512 tokens
    rng = np.random.default_rng(2)
    bounds = np.sort(rng.integers(0, len(sequences), 40))
    items = [('first', [])] + [
        (f'item {i}', iter(sequences[a:b]))
        for i, (a, b) in enumerate(zip([0, *bounds], [*bounds, len(sequences)], strict=True))
    ]
    expected = model.runner.run(sequences, each_sequence(heads.mean_vectors))
    streamed = list(model.runner.stream(items, each_sequence(heads.mean_vectors)))
    assert [item for item, _ in streamed] == ['first', *(f'item {i}' for i in range(41))]
    assert [len(results) for _, results in streamed] == [
        0, *np.diff([0, *bounds, len(sequences)])]
    for x, y in zip([x for _, results in streamed for x in results], expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_stream_reads_only_what_it_needs(model, sequences, monkeypatch):
    monkeypatch.setattr(model.runner, '_tokens_per_batch', 16)
    taken = []

    def items():
        for i, tokens in enumerate(sequences):
            taken.append(i)
            yield i, [tokens]

    stream = model.runner.stream(items(), each_sequence(heads.mean_vectors))
    assert next(stream)[0] == 0
    assert sum(len(sequences[i].ids) for i in taken) < 512 + 50
    stream = model.runner.stream(items(), each_token(heads.token_vectors), values_per_token=1 << 23)
    taken.clear()
    next(stream)
    assert sum(len(sequences[i].ids) for i in taken) < 16 + 50


def test_nothing_is_compiled_twice(model, sequences):
    """A run needs a handful of shapes; another of its kind needs none."""
    read = each_sequence(heads.mean_vectors)
    before = heads.encode._cache_size()
    model.runner.run(sequences, read)
    first = heads.encode._cache_size()
    assert first - before <= 4
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(sequences))
        model.runner.run([sequences[i] for i in order], read)
    assert heads.encode._cache_size() == first


def test_bfloat16_is_close(sequences, tmp_path):
    weights = tiny.pretraining_weights(tmp_path)
    coarse = Model(weights, dtype='bfloat16')
    read = each_token(heads.token_vectors)
    x = coarse.runner.run(sequences[:20], read)
    y = Model(weights).runner.run(sequences[:20], read)
    assert all(part.dtype == np.float32 for part in x)
    difference = np.abs(np.concatenate(x) - np.concatenate(y))
    assert 0 < difference.mean() < 0.05
