"""Options that make XLA faster on CPUs than it is by default."""

import functools

import jax

# Attention as one fusion of YNNPACK takes longer than by XLA's own operations for rows of 128
# tokens, by a third in small models, and 3 to 15 % less for rows of 512 (on a Xeon; see
# docs/log/speed.md). Most texts are short.
_NO_LIBRARY_FUSIONS = {'xla_cpu_experimental_ynn_fusion_type': ''}


@functools.cache
def compiler_options() -> dict[str, str] | None:
    """Options of `jax.jit` for programs on CPUs; None where this jax has not got them.

    A function with such options cannot be called inside another `jax.jit`.
    """
    probe = jax.jit(lambda x: x, compiler_options=_NO_LIBRARY_FUSIONS)
    try:
        with jax.default_device(jax.local_devices(backend='cpu')[0]):
            probe.lower(1.0).compile()
    except jax.errors.JaxRuntimeError as error:  # others say what is wrong; this one is expected
        if 'No such compile option' in str(error):
            return None
        raise
    return _NO_LIBRARY_FUSIONS
