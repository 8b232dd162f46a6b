"""Records of checked steps: which steps those are, and digests of batches on any mesh."""

import jax
import numpy as np
import pytest

from bert_jax.sharding import batch_sharding
from bert_jax.watch.step_fingerprints import (
    GRADIENT,
    LOSS,
    NUM_STEPS,
    StepChecks,
    batch_digest,
    is_checked,
    is_whole,
    steps_since_check,
)
from tests.train.toy import batch, mesh


def test_checked_steps_are_one_digit_and_zeros():
    checked = [step for step in range(1, 2001) if is_checked(step)]
    assert checked == [
        *range(1, 10), *range(10, 100, 10), *range(100, 1000, 100), 1000, 2000]
    assert np.diff([0, *checked]).tolist() == [steps_since_check(step) for step in checked]


@pytest.mark.parametrize('axes', [(8, 1, 1), (2, 2, 2), (1, 4, 1)])
def test_a_batch_has_one_digest_on_any_mesh(axes):
    rows = batch(3)
    on_mesh = jax.device_put(rows, batch_sharding(mesh(*axes)))
    assert batch_digest(on_mesh) == batch_digest(rows)


def test_another_batch_has_another_digest():
    rows = batch(3)
    others = [batch(4), {name: values[::-1] for name, values in rows.items()}]
    others.append(rows | {'weights': 1 - rows['weights']})
    digests = {batch_digest(rows), *map(batch_digest, others)}
    assert len(digests) == 4
    assert all(int(float(digest)) == digest for digest in digests)  # as records have them


def add_steps(checks, steps):
    """The records of these steps, whose loss is their number."""
    records = {}
    for step in steps:
        if is_checked(step):
            checks.see(step, batch(step))
        metrics = {'loss': np.float32(step), 'grad_norm': np.float32(2 * step),
                   'learning_rate': np.float32(0.5)}
        record = checks.add(step, metrics)
        if record:
            records[step] = record
    return records


def test_a_record_has_means_since_the_last_one():
    records = add_steps(StepChecks(), range(1, 21))
    assert list(records) == [*range(1, 11), 20]
    assert records[7][LOSS] == 7
    assert records[20][LOSS] == np.mean(range(11, 21))
    assert records[20][GRADIENT] == 2 * records[20][LOSS]


def test_a_resumed_run_says_which_means_lack_steps():
    records = add_steps(StepChecks(), range(16, 31))
    assert records[20][NUM_STEPS] == 5 and not is_whole(20, records[20])
    assert is_whole(30, records[30])
