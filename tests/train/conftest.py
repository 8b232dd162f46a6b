"""Small states are split like large ones here."""

from unittest import mock

import pytest


@pytest.fixture(scope='module', autouse=True)
def split_everything():
    with mock.patch('bert_jax.train.sharding.LEAST_SPLIT', 1):
        yield
