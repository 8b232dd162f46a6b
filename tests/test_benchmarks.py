"""Benchmarks: peers compute the same loss, pages show the stored results, curves and cycles."""

import argparse
import json
import statistics

import numpy as np
import pytest

from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    """Makes their modules importable, as if one of them had been started."""
    monkeypatch.syspath_prepend(str(ROOT / 'benchmarks'))


@pytest.mark.extras
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


def test_the_gpu_page_has_a_row_for_each_shape(tmp_path):
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


def test_the_quickstart_s_figures_are_those_of_its_stored_runs():
    readme = ' '.join((ROOT / 'README.md').read_text().split())
    stored = json.loads((ROOT / 'docs' / 'quickstart.json').read_text())
    runs = stored['runs']
    for metric in ('mlm_accuracy', 'nsp_accuracy'):
        shares = [100 * run[metric] for run in runs]
        assert (f'{statistics.mean(shares):.1f} % ({min(shares):.1f} to {max(shares):.1f})'
                in readme), metric
    minutes = [divmod(run['seconds'], 60) for run in sorted(runs, key=lambda run: run['seconds'])]
    shortest, longest = (f'{m} min {s:02} s' for m, s in (minutes[0], minutes[-1]))
    assert f'{shortest} to {longest}' in readme
    assert stored['hardware'] in readme and stored['date'] in readme
    for text, words in runs[0]['gaps'].items():
        assert f'{text} {words}' in readme


def test_a_power_law_is_fitted_and_its_interval_holds_the_true_value(tmp_path):
    import curves

    flops = np.geomspace(1e13, 1e14, 9)
    errors = np.exp(0.02 * np.random.default_rng(0).standard_normal(9))
    law = curves.fit(flops, 30 * flops**-0.05 * errors)
    assert law.slope == pytest.approx(-0.05, abs=0.02)
    middle, low, high = law.at(2e14)
    assert low < 30 * 2e14**-0.05 < high and 0.03 < high / middle - 1 < 0.12
    row = {'flops': {'a': 1e13, 'b': 0.0, 'c': 1e13}, 'scale': 'tiny',
           'parts': {'p': 'of e.py:five/4,tiny', 'q': 'of e.py:five/4@1,tiny'},
           'cells': {'ppl': {'a': {'parts': ['p'], 'values': [np.e**6]},
                             'c': {'parts': ['q'], 'values': [np.e**7]}}}}
    assert curves.points(row, 'ppl') == [('tiny', 'five', 1e13, pytest.approx(6))]
    (tmp_path / 'p/runs/seed=0').mkdir(parents=True)
    (tmp_path / 'q').symlink_to('p')
    config = {'train': {'batch_size': 8}, 'phases': [{'steps': 2}, {'steps': 3, 'batch_size': 4}]}
    (tmp_path / 'p/runs/seed=0/config.json').write_text(json.dumps(config))
    assert curves.points(row, 'ppl', tmp_path)[0].cost == 28


def test_a_step_with_more_cycles_than_stored_is_found():
    import cycles

    (program, *_) = json.loads(cycles.STORED.read_text())['programs']
    before = program['cycles']
    assert cycles.compare(program, [1.019 * x for x in before])[1]
    lines, is_good = cycles.compare(program, [*before[:-1], 1.03 * before[-1]])
    assert not is_good and '(+3.0 %)' in lines[-1] and '(+0.0 %)' in lines[0]
