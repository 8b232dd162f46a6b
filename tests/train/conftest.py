"""In these tests, small parameters are split over the mesh like large ones."""

from unittest import mock

import pytest


@pytest.fixture(scope='module', autouse=True)
def split_everything():
    with mock.patch('bert_jax.sharding.LEAST_SPLIT', 1):
        yield
