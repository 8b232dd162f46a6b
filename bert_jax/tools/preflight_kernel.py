"""How many cycles the attention kernel takes, from the schedule that the TPU compiler makes of it.

The compiler estimates no kernel, but it writes out its final instructions on request: bundles, one
of which is issued a cycle. Those of the grid's loop, times its steps, are the kernel's cycles;
waits for memory are left out, and what most steps skip (the mask of a row, made once for all its
heads) is counted in each: 10 to 30 % too much. The compiler takes the request from the environment,
once a process, and would write gigabytes for a whole model: a process of its own compiles the
kernel alone.

    python -m bert_jax.tools.preflight_kernel TOPOLOGY ROWS LENGTH HIDDEN DROPOUT   (that process)
"""

from __future__ import annotations

import functools
import glob
import os
import re
import subprocess
import sys
import tempfile

_CORES = {'v4': 2, 'v5p': 2}  # of a chip, which share a kernel's rows; one elsewhere
_BUNDLE = re.compile(r'\s*(?:0x)?[0-9a-f]+\s+(?:[A-Z]{2}:?\s*)*:?\s*((?:>\s*)*)\{')


@functools.cache
def attention_cycles(chip: str, rows: int, length: int, hidden: int, rate: float) -> dict[str, int]:
    """Cycles of `attention_forward` and `attention_backward` on a chip.

    Args:
      chip: as topologies name it, such as v5e.
      rows, length, hidden: of the kernel's queries, on one chip.
      rate: of dropout.
    """
    from bert_jax.model.attention_kernel import grids

    shape = '1x1x1' if chip in _CORES else '1x1'
    with tempfile.TemporaryDirectory(prefix='bert_jax_') as folder:
        wanted = f'--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true'
        environment = os.environ | {
            'LIBTPU_INIT_ARGS': f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {wanted}"
        }
        subprocess.run(
            [sys.executable, '-m', __name__, f'{chip}:{shape}',
             *map(str, (rows, length, hidden, rate))],
            env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        found = {}
        for name, (groups, steps) in grids(rows, length, hidden).items():
            # Other files of the same ending are of earlier stages.
            path, = (p for p in glob.glob(f'{folder}/*{name}*-final_bundles.txt')
                     if 'schedule-analysis' not in p and '-TLP-' not in p and '<late' not in p)
            with open(path, encoding='utf-8', errors='replace') as file:
                once, each = bundles(file.read())
            found[name] = once + each * steps * -(-groups // _CORES.get(chip, 1))
    return found


def bundles(text: str) -> tuple[int, int]:
    """Of a schedule: how many run once, and how many in each step of its loop."""
    depths = [match[1].count('>') for match in map(_BUNDLE.match, text.splitlines()) if match]
    assert depths and max(depths) <= 1, 'a loop within the loop: its trips are not known'
    return depths.count(0), depths.count(1)


def _compile(topology: str, rows: int, length: int, hidden: int, rate: float) -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    from bert_jax.model.attention_kernel import HEAD_DIM, kernel_attention
    from bert_jax.tools.preflight_topology import open_topology

    device = SingleDeviceSharding(open_topology(topology)[0])

    def given(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=device)

    def both(
        qkv: jax.Array, bias: jax.Array, segments: jax.Array, keys: jax.Array, gradient: jax.Array
    ) -> tuple[jax.Array, ...]:
        def attend(qkv: jax.Array, bias: jax.Array) -> jax.Array:
            return kernel_attention(qkv, bias, segments, keys if rate else None, 0, rate=rate)

        context, back = jax.vjp(attend, qkv, bias)
        return context, *back(gradient)

    heads = (hidden // HEAD_DIM, HEAD_DIM)
    jax.jit(both).lower(
        given((rows, length, 3, *heads), 'bfloat16'), given((3, *heads), 'float32'),
        given((rows, length), 'int32'),
        given((rows, 2), 'uint32'), given((rows, length, *heads), 'bfloat16'),
    ).compile()


if __name__ == '__main__':
    topology, rows, length, hidden, rate = sys.argv[1:]
    _compile(topology, int(rows), int(length), int(hidden), float(rate))
