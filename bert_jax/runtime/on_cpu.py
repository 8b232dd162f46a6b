"""What makes XLA faster on CPUs than it is by default."""

import contextlib
import ctypes
import functools
import os
import platform

import jax

# Numbers of mallopt(3): freed memory at the end of the heap is given back beyond so many bytes; the
# heap grows by so many; so many allocations may be pages of their own.
_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_MAX = -4
# Attention as one fusion of YNNPACK takes several times as long as by XLA's own operations, and its
# products alone are no faster than theirs.
_NO_LIBRARY_FUSIONS = {'xla_cpu_experimental_ynn_fusion_type': ''}


@functools.cache
def keep_memory() -> None:
    """Lets malloc keep what XLA frees, for the next step; nothing where it is not glibc's.

    XLA allocates the temporary arrays of each step anew. By default, glibc takes them from the
    kernel and gives them back, and the kernel clears each of their pages at its first use: where
    attention was one fusion, over a quarter of the CPU time of small models. What the environment
    says of this takes precedence (huge pages are another matter).
    """
    tunables = os.environ.get('GLIBC_TUNABLES', '')
    is_set = any(name in tunables for name in ('malloc.mmap', 'malloc.t')) or any(
        name.startswith('MALLOC_') for name in os.environ)
    if is_set or platform.libc_ver()[0] != 'glibc':
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_MAX, 0)
    libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    libc.mallopt(_TOP_PAD, 64 << 20)


@functools.cache
def compiler_options() -> dict[str, str] | None:
    """Options of `jax.jit` for programs on CPUs; None where this jax has not got them."""
    probe = jax.jit(lambda x: x, compiler_options=_NO_LIBRARY_FUSIONS)
    with contextlib.suppress(Exception):  # whichever jax raises for an unknown option
        probe.lower(1.0).compile()
        return _NO_LIBRARY_FUSIONS
    return None
