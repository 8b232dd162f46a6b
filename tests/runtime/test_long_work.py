"""Work that has no time limit is known while it goes on."""

import pytest

from bert_jax.runtime.long_work import is_at_long_work, long_work


def test_long_work_ends_with_its_last_block():
    assert not is_at_long_work()
    with long_work():
        with pytest.raises(ValueError), long_work():
            raise ValueError
        assert is_at_long_work()
    assert not is_at_long_work()
