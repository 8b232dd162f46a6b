"""Bundles that the attention kernels take on a TPU, by the compiler's schedules; needs no TPU.

The kernels are compiled alone, in seconds, as the train step of BERT-Base calls them. A core issues
one bundle a cycle; waits for memory are left out.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from bert_jax.kernels.attention_kernel import kernel_attention
from bert_jax.kernels.attention_tiles import Settings
from bert_jax.runtime.errors import InputError
from bert_jax.tools.preflight.hlo import CompiledText
from bert_jax.tools.preflight.schedules import Schedule, take_schedules

ROWS = {128: 64, 512: 16}  # a chip, by length
NUM_HEADS = 12
SETTINGS = Settings(head_dim=64, rate=0.1)


def measure_attention(device: Any, folder: str) -> dict[str, float]:
    """Bundles a row of a layer's forward and backward kernel, by the name of the figure.

    Args:
      device: a v5e or v6e, perhaps of a topology.
      folder: where the compiler writes schedules (`write_schedules`).

    Raises:
      InputError: the schedules do not tell the bundles of a kernel.
    """
    result = {}
    for length, rows in ROWS.items():
        text = CompiledText(compiled_attention(device, rows, length))
        for name, bundles in bundles_of_kernels(text, take_schedules(folder)).items():
            result[f'{name}_bundles_per_row_of_{length}'] = bundles / rows
    return result


def compiled_attention(device: Any, rows: int, length: int) -> str:
    """The text of a program of both kernels, compiled for a device."""
    def forward_and_backward(
        qkv: jax.Array, bias: jax.Array, segments: jax.Array, rows_keys: jax.Array,
        d_context: jax.Array,
    ) -> Any:
        def attend(qkv: jax.Array, bias: jax.Array) -> jax.Array:
            return kernel_attention(qkv, bias, segments, rows_keys, 0, settings=SETTINGS)

        context, pull = jax.vjp(attend, qkv, bias)
        return context, pull(d_context)

    heads = NUM_HEADS, SETTINGS.head_dim
    arguments = []
    for shape, dtype in (
        ((rows, length, 3, *heads), jnp.bfloat16),
        ((3, *heads), jnp.float32),
        ((rows, length), jnp.int32),
        ((rows, 2), jnp.uint32),
        ((rows, length, *heads), jnp.bfloat16),
    ):
        arguments.append(jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(device)))
    return str(jax.jit(forward_and_backward).lower(*arguments).compile().as_text())


def bundles_of_kernels(text: CompiledText, schedules: dict[str, Schedule]) -> dict[str, int]:
    """Bundles that each kernel of a program issues, by its name, forward or backward.

    Loops within a grid step, whose trips the schedule does not tell, are left out: the kernels have
    them for scores that float32's exponents cannot hold.

    Args:
      text: of the program, for one core.
      schedules: of its instructions, by name.

    Raises:
      InputError: a kernel has no schedule, or most of a grid step is in such a loop.
    """
    result = {}
    for kernel in text.instructions:
        if not kernel.is_kernel:
            continue
        if kernel.name not in schedules:
            raise InputError(f'the compiler wrote no schedule of {kernel.name}')
        outside_loops, in_loop, in_inner_loops = schedules[kernel.name].bundles
        if in_inner_loops > in_loop:
            raise InputError(
                f'{kernel.name} has {in_inner_loops} bundles in loops of unknown length within its '
                f'grid step, and {in_loop} outside of them: its schedule does not tell what it '
                'takes')
        name = 'backward' if 'backward' in kernel.name else 'forward'
        result[name] = outside_loops + in_loop * text.trips(kernel, cores=1)
    return result
