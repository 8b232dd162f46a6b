"""The count of what a run passes can be made: `tests/road.py`."""

import re
import subprocess
import sys

import pytest

from tests.road import ROOT

pytestmark = pytest.mark.slow


def test_the_road_from_a_csv_to_predictions_is_counted():
    process = subprocess.run([sys.executable, '-m', 'tests.road', 'predict'], cwd=ROOT,
                             capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    counts = re.search(r'predict: (\d+) files, (\d+) functions, (\d+) classes', process.stdout)
    files, functions, classes = map(int, counts.groups())
    assert files > 20 and functions > files > classes
