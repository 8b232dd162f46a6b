"""The quick part of the tests, `--quick`: what to run while working, about 90 seconds on two cores.

It leaves out the tests that are marked slow, and those that take longer than a quarter of a second.
`tests/seconds.json` lists these with their seconds; `--store-seconds` measures them anew, best on a
machine that does nothing else. A test that is not listed, as a new one, is quick until then.
"""

import collections
import functools
import json
import re
from pathlib import Path

_LIMIT = 0.25  # seconds of a case, in the mean
_FILE = Path(__file__).with_name('seconds.json')
_ALL_SLOW = re.compile(r'^pytestmark = .*pytest\.mark\.slow', re.MULTILINE)


def pytest_addoption(parser):
    group = parser.getgroup('seconds')
    group.addoption('--quick', action='store_true', help='only tests of under 0.25 seconds')
    group.addoption('--store-seconds', action='store_true', help='write tests/seconds.json')


def count_seconds(config):
    """Writes them down at the end, if it is asked for."""
    if config.getoption('--store-seconds') and not hasattr(config, 'workerinput'):
        config.pluginmanager.register(_Stopwatch())


def pytest_ignore_collect(collection_path, config):
    """Files all of whose tests are slow are not even imported."""
    if config.getoption('--quick') and collection_path.suffix == '.py':
        return bool(_ALL_SLOW.search(collection_path.read_text())) or None
    return None


def pytest_collection_modifyitems(config, items):
    if not config.getoption('--quick'):
        return
    quick = []
    left_out = []
    for item in items:
        (quick if is_quick(item) else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = quick


def is_quick(item):
    return _name_of(item.nodeid) not in _longer() and not item.get_closest_marker('slow')


@functools.cache
def _longer():
    return json.loads(_FILE.read_text())


def _name_of(nodeid):
    """The name of a test without that of its case."""
    return nodeid.partition('[')[0]


class _Stopwatch:
    """Writes the file at the end of a run; tests that did not run stay as they are."""

    def __init__(self):
        self._seconds = collections.defaultdict(collections.Counter)  # by test, of its cases

    def pytest_runtest_logreport(self, report):
        self._seconds[_name_of(report.nodeid)][report.nodeid] += report.duration

    def pytest_sessionfinish(self):
        known = json.loads(_FILE.read_text())
        for name, of_cases in self._seconds.items():
            known.pop(name, None)
            mean = sum(of_cases.values()) / len(of_cases)
            if mean > _LIMIT:
                known[name] = round(mean, 2)
        _FILE.write_text(json.dumps(dict(sorted(known.items())), indent=0) + '\n')
