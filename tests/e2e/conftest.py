"""Fixtures of whole runs."""

from tests.numpy_kernels import kernels_of_numpy  # noqa: F401
