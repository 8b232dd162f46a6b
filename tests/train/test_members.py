"""Runs in one program: each as if it were alone, whatever becomes of the others."""

import functools

import jax
import numpy as np
import optax
import pytest
from toy import Toy, batch, mesh

from bert_jax.runtime.errors import Diverged, Stopped
from bert_jax.train.loop import Alone
from bert_jax.train.members import Numbers, Slot, Together
from bert_jax.train.state import abstract_state, init_state
from bert_jax.train.step import train_update

RATES = (0.1, 0.02, 0.3)


def update_on(on):
    def update(numbers):
        rate = numbers.learning_rates[0]
        return train_update(
            Toy(), optax.sgd(rate, momentum=0.9), lambda step: rate / (1.0 + step), on,
            seed=numbers.seed, clip_norm=1.0)

    return update


def numbers(i):
    return Numbers(np.uint32(i), np.array([RATES[i]], np.float32))


def a_run(i, held, on, steps=6, fault=None, seen=None):
    """A run of batches of its own, of its own number of rows; gives its state and its losses."""
    losses = []

    def go():
        held.state = init_state(Toy(), optax.sgd(0.1, momentum=0.9), on, i)
        for step in range(steps):
            rows = batch(100 * i + step, size=6 + i)
            metrics = yield rows if isinstance(held, Slot) else jax.device_put(rows)
            losses.append(float(metrics['loss']))
            if step == 2:  # an evaluation in between
                assert int(held.state.step) == 3
                if fault is not None:
                    raise fault
        return jax.device_get(held.state), losses

    return go()


@functools.cache
def alone(i, steps=6):
    step = jax.jit(lambda state, rows: update_on(mesh())(numbers(i))(state, rows))
    held = Alone(step)
    return held.drive(a_run(i, held, mesh(), steps))


def together_on(on):
    return Together(
        update_on(on), abstract_state(Toy(), optax.sgd(0.1, momentum=0.9), on), on, 3)


@pytest.mark.parametrize('devices', [1, 2])
def test_each_run_is_what_it_is_alone(devices):
    on = mesh(data=devices)
    together = together_on(on)
    assert together.size == (3 if devices == 1 else 4)
    slots = [Slot() for _ in range(3)]
    steps = (6, 4, 6)  # one ends before the others
    found = together.train(
        [a_run(i, slots[i], on, steps[i]) for i in range(3)], slots, [numbers(i) for i in range(3)])
    for i in range(3):
        expected, losses = alone(i, steps[i])
        own, own_losses = found[i]
        assert int(own.step) == steps[i]
        np.testing.assert_allclose(own_losses, losses, rtol=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
                     own, expected)


def test_there_is_room_where_the_memory_of_a_device_says_so(monkeypatch):
    together = together_on(mesh())
    for limit, fits in ((None, True), (1 << 30, True), (1000, False)):
        monkeypatch.setattr('bert_jax.train.members.device_memory', lambda _, limit=limit: limit)
        assert together.fits(numbers(0), batch(0)) is fits


def test_a_run_that_fails_or_stops_leaves_the_others_alone():
    on = mesh()
    together = together_on(on)
    slots = [Slot() for _ in range(3)]
    faults = (Diverged('nan', 1), None, Stopped('asked'))
    found = together.train(
        [a_run(i, slots[i], on, fault=faults[i]) for i in range(3)], slots,
        [numbers(i) for i in range(3)])
    assert found[0] is faults[0] and found[2] is faults[2]
    np.testing.assert_allclose(found[1][1], alone(1)[1], rtol=1e-6)
