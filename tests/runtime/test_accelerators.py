"""Accelerators of a machine that jax does not use, and those that it need not look for."""

from unittest import mock

import pytest

from bert_jax.runtime import accelerators
from bert_jax.runtime.accelerators import check_accelerators, skip_absent_tpu
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


@pytest.mark.parametrize(('platforms', 'libtpu', 'kind', 'devices', 'is_skipped'), [
    pytest.param(None, True, 'cpu', [], True, id='libtpu without a TPU'),
    pytest.param(None, False, 'cpu', [], False, id='no libtpu: jax finds out by itself'),
    pytest.param('tpu', True, 'cpu', [], False, id='the user knows better'),
    pytest.param(None, True, 'tpu', [], False, id='a TPU on the bus'),
    pytest.param(None, True, 'gpu', [], False, id='a card'),
    pytest.param(None, True, 'cpu', ['/dev/accel0'], False, id='a TPU that is on no bus'),
])
def test_a_tpu_is_not_looked_for_where_there_is_none(
    monkeypatch, platforms, libtpu, kind, devices, is_skipped
):
    config = mock.Mock(jax_platforms=platforms)
    monkeypatch.setattr(accelerators, 'jax', mock.Mock(config=config))
    monkeypatch.setattr('importlib.util.find_spec', lambda name: name if libtpu else None)
    monkeypatch.setattr(accelerators, 'visible_chips', lambda: (kind, ['0']))
    monkeypatch.setattr('glob.glob', lambda pattern: devices)
    skip_absent_tpu()
    assert config.update.called == is_skipped
