"""Models of these tests that compute the same share their compiled outputs."""

import pytest

from tests.shared_steps import shared_steps


@pytest.fixture(scope='module', autouse=True)
def _shared_outputs():
    with shared_steps():
        yield
