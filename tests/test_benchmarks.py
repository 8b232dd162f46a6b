"""What the benchmarks compare is the same work, and their page says what was measured."""

import argparse
import json
import sys

import pytest

from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    """Their folder, as if one of them had been started."""
    monkeypatch.syspath_prepend(str(ROOT / 'benchmarks'))
    yield
    for name in ('peer', 'huggingface_pretrain', 'gpu_page'):
        sys.modules.pop(name, None)


def test_the_tuned_peer_has_the_loss_of_the_stock_one():
    torch = pytest.importorskip('torch', reason='the extra [parity] is not installed')
    pytest.importorskip('transformers', reason='the extra [parity] is not installed')
    import huggingface_pretrain as peer

    args = argparse.Namespace(
        layers=1, hidden=32, heads=2, vocab_size=100, batch_size=3, seq=16, predictions=4)
    torch.manual_seed(0)
    model, batch = peer.make_model(args).eval(), peer.make_batch(args, 'cpu')
    losses = [compute(model, batch) for compute in (peer.loss_everywhere, peer.loss_where_masked)]
    torch.testing.assert_close(*losses)


def test_the_page_of_the_gpu_has_a_row_a_shape(tmp_path):
    import gpu_page

    def write(name, result):
        (tmp_path / f'{name}.json').write_text(json.dumps(result))

    write('base-128-256-ours', {
        'hardware': {'device_kind': 'NVIDIA X'}, 'date': '2026-01-02T03:04', 'versions': {'jax': 1},
        'results': [{'figures': [
            {'unit': 'sequences/s', 'median': 1000.0}, {'unit': 'tokens/s', 'median': 5.0}]}],
    })
    write('base-128-256-stock', {'sequences_per_second': 400.0, 'versions': {'torch': 2}})
    write('large-512-32-stock', {'sequences_per_second': 50.0, 'versions': {'torch': 2}})
    page = gpu_page.page(tmp_path)
    assert '| base, 256 of 128 | 1,000 | 400 (2.50) | 8,500 |' in page
    assert '| large, 32 of 512 | left out | 50 | 580 |' in page
    assert '- NVIDIA X, 2026-01-02' in page and '- PyTorch: torch 2' in page
