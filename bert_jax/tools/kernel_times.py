"""Which kernels of a step take longest on this machine's device, from a trace of jax's profiler."""

import dataclasses
import glob
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.profiler import ProfileData

from bert_jax.runtime.files import temporary_folder
from bert_jax.tools.preflight.report import grid

_DEVICE = '/device:'  # a plane of an accelerator; without one, threads of the host compute
_STREAM = 'Stream'  # a line of a GPU's plane: what ran, one kernel after another
_OPERATIONS = 'XLA Ops'  # the same of a TPU's


@dataclasses.dataclass
class KernelTime:
    """The time that a kernel takes of a step.

    Attributes:
      name: of the kernel, or of the operation where the device has none.
      calls: a step.
      milliseconds: a step, of all calls.
    """

    name: str
    calls: float = 0.0
    milliseconds: float = 0.0


def trace_kernels(run: Callable[[int], Any], num_steps: int) -> list[KernelTime]:
    """The kernels of a step, the longest first; empty if the profiler saw none.

    Args:
      run: runs so many steps and waits for them.
      num_steps: how many to trace.
    """
    with temporary_folder() as folder:
        with jax.profiler.trace(folder):
            run(num_steps)
        paths = glob.glob(os.path.join(folder, '**', '*.xplane.pb'), recursive=True)
        traces = [ProfileData.from_file(path) for path in paths]
        return sum_kernels(traces, num_steps)


def sum_kernels(traces: Sequence[ProfileData], num_steps: int) -> list[KernelTime]:
    """The kernels of a step in traces of `num_steps` steps, one a host; the longest first."""
    found: dict[str, KernelTime] = {}
    for trace in traces:
        for event in _kernel_events(trace):
            kernel = found.setdefault(event.name, KernelTime(event.name))
            kernel.calls += 1 / num_steps
            kernel.milliseconds += event.duration_ns / 1e6 / num_steps
    return sorted(found.values(), key=lambda kernel: -kernel.milliseconds)


def _kernel_events(trace: ProfileData) -> Iterator[Any]:
    """The events of a trace that are kernels, or operations on a CPU."""
    planes = list(trace.planes)
    devices = [plane for plane in planes if plane.name.startswith(_DEVICE)]
    for plane in devices:
        for line in plane.lines:
            if line.name.startswith(_STREAM) or line.name == _OPERATIONS:
                yield from line.events
    if devices:
        return
    for plane in planes:
        for line in plane.lines:
            for event in line.events:
                if any(name == 'hlo_op' for name, _ in event.stats):
                    yield event


def kernel_table(kernels: Sequence[KernelTime], most: int) -> str:
    """The `most` longest kernels as a text table, with their share of all."""
    whole = sum(kernel.milliseconds for kernel in kernels)
    rows = [['kernel', 'ms a step', '%', 'calls']]
    for kernel in kernels[:most]:
        rows.append([
            kernel.name[:80], f'{kernel.milliseconds:.3f}',
            f'{100 * kernel.milliseconds / whole:.1f}', f'{kernel.calls:g}'])
    calls = sum(kernel.calls for kernel in kernels)
    rows.append(['all', f'{whole:.3f}', '100.0', f'{calls:g}'])
    return grid(rows)
