"""README's figures of the quickstart are those of the stored runs."""

import json
import statistics

from tests.conftest import ROOT


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
