"""Two workers of pytest share the compiling of what both import.

Both import the same packages and files of tests at the same time. Where these have no bytecode yet,
as in a new clone or with PYTHONDONTWRITEBYTECODE, each would compile all of them, which takes twice
as long as the rest of the collection. So workers with odd numbers begin with TensorFlow and with
the last file of tests, and from the middle on both find the bytecode of the other.
"""

import contextlib
import importlib
import itertools

import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.packages import loading_tensorflow


def share_compiling(config):
    """Lets this worker begin at the end, if it has an odd number and runs all tests."""
    worker = getattr(config, 'workerinput', {}).get('workerid', '')  # 'gw0', 'gw1', ...
    is_whole = config.args_source is config.ArgsSource.TESTPATHS
    if is_whole and worker.endswith(tuple('13579')):
        config.pluginmanager.register(_FromTheEnd())


class _FromTheEnd:
    def pytest_sessionstart(self, session):
        with contextlib.suppress(InputError), loading_tensorflow('reading text'):
            importlib.import_module('tensorflow_text')

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector):
        report = yield
        if not isinstance(collector, pytest.File):
            report.result = report.result and report.result[::-1]
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        """All workers must have the same order, which that of tests named one by one may not be."""
        files = [list(group) for _, group in itertools.groupby(items, lambda item: item.path)]
        items[:] = itertools.chain.from_iterable(reversed(files))
