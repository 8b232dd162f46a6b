from tests.train.conftest import split_everything  # noqa: F401
