"""Which workers of the tests begin at the end."""

import types

import pytest

from tests.halves import share_compiling


@pytest.mark.parametrize('source, worker, is_registered', [
    ('TESTPATHS', 'gw1', True), ('TESTPATHS', 'gw0', False),
    ('ARGS', 'gw1', False),  # tests of a file that are named one by one would change places
])
def test_every_second_worker_begins_at_the_end_of_the_whole_suite(source, worker, is_registered):
    registered = []
    sources = pytest.Config.ArgsSource
    share_compiling(types.SimpleNamespace(
        workerinput={'workerid': worker}, args_source=sources[source], ArgsSource=sources,
        pluginmanager=types.SimpleNamespace(register=registered.append)))
    assert len(registered) == is_registered
