"""Accelerators of a machine that jax does not use."""

import pytest

from bert_jax.runtime.accelerators import check_accelerators
from bert_jax.runtime.errors import InputError


@pytest.mark.parametrize('device, extra', [('0x0063', r'\[tpu\]'), ('', r'\[cuda\]')])
def test_an_accelerator_that_jax_does_not_use_is_refused(monkeypatch, tmp_path, device, extra):
    (tmp_path / 'vendor').write_text('0x1ae0\n')
    (tmp_path / 'device').write_text(device + '\n')
    found = {'/sys/bus/pci/devices/*': [str(tmp_path)], '/dev/nvidia[0-9]*': ['/dev/nvidia0']}
    monkeypatch.setattr('glob.glob', lambda pattern: found[pattern])
    monkeypatch.delenv('JAX_PLATFORMS')
    with pytest.raises(InputError, match=extra):
        check_accelerators()
    monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
    check_accelerators()
