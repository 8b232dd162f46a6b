"""What all abuses start from is made once."""

from pathlib import Path

import pytest

from tests.abuse.things import make


@pytest.fixture(scope='session')
def things(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('things')
    make(folder)
    return folder
