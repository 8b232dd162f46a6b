"""Chips by the names that jax gives them."""

import pytest

from bert_jax.runtime.chips import find_chip


@pytest.mark.parametrize('kind, name, peak', [
    ('TPU v3', 'v3', 61.5e12), ('TPU v4', 'v4', 275e12), ('TPU v5 lite', 'v5e', 197e12),
    ('TPU v5', 'v5p', 459e12), ('TPU v5p', 'v5p', 459e12), ('TPU v6 lite', 'v6e', 918e12),
    ('TPU7x', 'tpu7x', 1153.5e12),
    ('NVIDIA H100 80GB HBM3', 'h100', 989e12), ('NVIDIA A100-SXM4-80GB', 'a100', 312e12),
    ('NVIDIA A100-SXM4-40GB', 'a100-40gb', 312e12), ('NVIDIA B200', 'b200', 2250e12),
    ('cpu', '', 0), ('Tesla T4', '', 0),
])
def test_a_chip_is_found_by_its_device_kind(kind, name, peak):
    chip = find_chip(kind)
    assert (chip.name, chip.peak_flops) == (name, peak)
    if chip.cycle_flops:
        assert chip.memory_bytes and chip.bandwidth and 1.0e9 < chip.clock < 2.0e9
