"""Chips are told from one another by what jax calls them."""

import pytest

from bert_jax.runtime.process import CHIPS, find_chip, peak_flops


@pytest.mark.parametrize('kind, peak', [
    ('TPU v2', 46e12), ('TPU v3', 123e12), ('TPU v4', 275e12), ('TPU v5 lite', 197e12),
    ('TPU v5e', 197e12), ('TPU v5', 459e12), ('TPU v5p', 459e12), ('TPU v6 lite', 918e12),
    ('TPU v6e', 918e12), ('NVIDIA H200', 989e12), ('NVIDIA H100 80GB HBM3', 989e12),
    ('NVIDIA A100-SXM4-40GB', 312e12), ('cpu', None), ('Tesla T4', None),
])
def test_peak_of_a_device_kind(kind, peak):
    assert peak_flops(kind) == peak


@pytest.mark.parametrize('kind, name', [
    ('TPU v4', 'v4'), ('TPU v5 lite', 'v5e'), ('TPU v5', 'v5p'), ('TPU v6 lite', 'v6e'),
])
def test_the_compiler_s_names_are_known(kind, name):
    chip = find_chip(kind)
    assert chip.name == name
    assert chip.memory_bytes and chip.bandwidth and chip.links
    assert 1.0e9 < chip.clock < 1.8e9


def test_names_are_unique():
    assert len({chip.name for chip in CHIPS}) == len(CHIPS)
