"""Models that are loaded anew for a test compile what equal ones before them have compiled."""

import pytest

from tests.shared_steps import shared_outputs


@pytest.fixture(autouse=True, scope='module')
def _shared_outputs():
    with shared_outputs():
        yield
