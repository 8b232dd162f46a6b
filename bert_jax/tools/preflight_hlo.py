"""Reads compiled TPU programs: topologies, cycles by scope, messages, kernel schedules."""

import functools
import glob
import importlib.util
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.process import quiet_stderr

# Dims of a slice, and the longest dim of a pod: beyond it libtpu aborts.
_SLICES = {'v4': (3, 16), 'v5p': (3, 24), 'v5e': (2, 16), 'v6e': (2, 16)}
_MEGACORE = ('v4', 'v5p')  # chips of two cores, which are one device in jax


def open_topology(name: str) -> list[Any]:
    """The devices of a slice that need not exist, for the compiler only.

    Raises:
      InputError: there is no such slice, or no libtpu.
    """
    chip, _, shape = name.partition(':')
    if chip not in _SLICES or not re.fullmatch(r'[1-9]\d*(x[1-9]\d*)*', shape):
        raise InputError(
            f'--topology={name!r} is not a slice: write one of {", ".join(_SLICES)} and its shape '
            'in chips, such as v5e:16x16 or v4:4x4x4')
    sizes = [int(size) for size in shape.split('x')]
    dims, longest = _SLICES[chip]
    if len(sizes) != dims or max(sizes) > longest:
        raise InputError(
            f'--topology={name!r}: a slice of {chip} has {dims} dims of at most {longest} chips')
    if importlib.util.find_spec('libtpu') is None:
        raise InputError("libtpu is not installed: pip install '.[tpu]', or the libtpu of your jax")
    from jax.experimental import topologies

    options: dict[str, Any] = {'chip_config_name': 'megacore'} if chip in _MEGACORE else {}
    if max(sizes) == 1:
        options['chips_per_host_bounds'] = (1, 1, 1)
    try:
        with quiet_stderr():  # libtpu reports that the environment of a TPU VM is missing
            return list(topologies.get_topology_desc(
                platform='tpu', topology_name=name, **options).devices)
    except Exception as error:  # of many types
        raise InputError(f'--topology={name!r}: {error}') from error


_COLLECTIVES = (
    'all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all', 'collective-permute',
    'collective-broadcast', 'ragged-all-to-all',
)
# The compiler writes 2^63 - 1 where it has no estimate.
_SENTINEL = 1 << 60
_KERNEL = 'tpu_custom_call'  # a kernel of Pallas; the compiler's other targets cost nothing
_BYTES = {'pred': 1, 'bf16': 2, 'f16': 2, 's16': 2, 'u16': 2, 's8': 1, 'u8': 1, 's4': 1, 'u4': 1,
          'f64': 8, 's64': 8, 'u64': 8, 'c64': 8}

# Of the first part that an instruction's name contains: its scope.
_SCOPES = (
    ('optimizer', 'optimizer'), ('predictions', 'head'), ('seq_relationship', 'head'),
    ('pooler', 'head'), ('BPS,', 'head'), ('MV,', 'head'), ('H,VH', 'head'),
    ('take_along_axis', 'head'), ('embeddings', 'embeddings'), ('LayerNorm', 'layer norm'),
    ('self/qkv', 'qkv'), ('attention/self', 'attention'), ('attention/output', 'attention output'),
    ('intermediate', 'intermediate'), ('/output/', 'output'), ('features/', 'model, other'),
    ('BertFor', 'model, other'), ('jvp()', 'head'), ('while/body', 'accumulation'),
)


class Array(NamedTuple):
    """An array of a result."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * _BYTES.get(self.dtype, 4)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Instruction(NamedTuple):
    """An instruction of a compiled program.

    Attributes:
      op_name: its origin in the Python program.
      computation: that it is part of.
      times: how often a step runs it.
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    op_name: str
    computation: str
    times: int


class CompiledText:
    """The text of a compiled program."""

    def __init__(self, text: str):
        bodies: dict[str, list[str]] = {}
        lines: list[str] = []
        entry = ''
        for line in text.splitlines():
            if match := re.match(r'(ENTRY )?%?([\w.-]+) (?:\(.*)?\{$', line):
                lines = bodies.setdefault(match[2], [])
                entry = match[2] if match[1] else entry
            elif line.startswith('  '):
                lines.append(line)
        times = dict.fromkeys(bodies, 0) | {entry: 1}
        result = []
        for name in reversed(bodies):  # callers come after what they call
            for line in bodies[name] if times[name] else ():
                if (parsed := _parse(line, name, times[name])) is None:
                    continue
                result.append(parsed)
                for role, called in _called(parsed.attributes):
                    often = _trips(bodies, parsed) if role == 'body' else 1
                    times[called] = times.get(called, 0) + times[name] * often
        self.instructions = result[::-1]
        self._by_name = {instruction.name: instruction for instruction in result}

    def operand(self, instruction: Instruction, number: int) -> Array:
        return self._by_name[instruction.operands[number]].arrays[0]

    def timed(self) -> Iterator[tuple[Instruction, int | None]]:
        """Instructions that take time, with their estimate: None for kernels and sentinels."""
        for i in self.instructions:
            if match := re.search(r'"estimated_cycles":"(\d+)"', i.attributes):
                yield i, int(match[1]) if int(match[1]) < _SENTINEL else None
            elif f'"{_KERNEL}"' in i.attributes:
                yield i, None

    def bytes_moved(self, instruction: Instruction) -> int:
        """Bytes of its operands and results."""
        # A kernel's operands repeat an array for each part of it that a step takes.
        operands = [self._by_name[name] for name in set(instruction.operands)
                    if name in self._by_name]
        return sum(array.bytes for i in (instruction, *operands) for array in i.arrays)

    def collectives(self) -> list[dict[str, Any]]:
        """Messages between chips: kind, scope, largest array, count a step and total bytes a chip.

        The compiler joins small messages, whose scope is then `several`. Bytes are those of the
        whole result of a gather, else those that a chip sends.
        """
        result: dict[tuple[str, str, str], list[int]] = {}
        seen = set()
        for i in self.instructions:
            kind = i.opcode.removesuffix('-start')
            if kind == 'all-reduce' and i.computation.startswith('all-reduce-scatter'):
                kind = 'reduce-scatter'
            # A message that overlaps with computation is a chain of instructions on one channel.
            # (Only there: all messages of a shard_map have the same channel.)
            chain = re.search(r'channel_id=(\d+).*chain_id="(\d+)"', i.attributes)
            name = chain.groups() if chain else i.name
            if kind not in _COLLECTIVES or name in seen:
                continue
            seen.add(name)
            arrays = i.arrays
            if kind == 'reduce-scatter':
                arrays = tuple(a for name in i.operands for a in self._by_name[name].arrays)
            elif i.opcode.endswith('-start') and kind != 'all-reduce':  # operand, result, flags
                arrays = arrays[1:2]
            scope = scope_of(i.op_name)[0] if len(arrays) == 1 else 'several'
            largest = max(arrays, key=lambda array: array.bytes)
            entry = result.setdefault((kind, scope, str(largest)), [0, 0])
            entry[0] += i.times
            entry[1] += i.times * sum(array.bytes for array in arrays)
        return [
            {'kind': kind, 'scope': scope, 'largest': largest, 'count': count, 'bytes': size}
            for (kind, scope, largest), (count, size) in
            sorted(result.items(), key=lambda item: -item[1][1])]


# Name, result, opcode, operands, attributes. Layouts have brackets too: f32[8,8]{1,0:T(8,128)}.
_INSTRUCTION = re.compile(r'\s+(?:ROOT )?%?([\w.-]+) = (.+?) ([\w-]+)\((.*?)\)(, .*|)$')


def _parse(line: str, computation: str, times: int) -> Instruction | None:
    # Comments number every fifth operand.
    match = _INSTRUCTION.match(re.sub(r'/\*.*?\*/', '', line))
    if not match:
        return None
    name, result, opcode, operands, attributes = match.groups()
    origin = re.search(r'op_name="([^"]*)"', attributes)
    return Instruction(
        name, opcode, _arrays(result),
        tuple(part.split(' ')[-1].lstrip('%') for part in operands.split(', ')), attributes,
        origin[1] if origin else '', computation, times)


@functools.lru_cache(1 << 14)
def _arrays(text: str) -> tuple[Array, ...]:
    return tuple(
        Array(dtype, tuple(int(d) for d in dims.split(',') if d))
        for dtype, dims in re.findall(r'([a-z]+\d*[a-z\d]*)\[([\d,]*)\]', text))


def _called(attributes: str) -> Iterator[tuple[str, str]]:
    """(role, name) of the computations that an instruction calls."""
    yield from re.findall(r'(body|condition|calls|to_apply)=%?([\w.-]+)', attributes)
    for many in re.findall(r'(?:branch_computations|called_computations)=\{([^}]*)\}', attributes):
        for one in re.findall(r'%?([\w.-]+)', many):
            yield 'branch', one


def _trips(bodies: dict[str, list[str]], loop: Instruction) -> int:
    """The trips of a loop: its known count, else the constant of its condition."""
    if match := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes):
        return int(match[1])
    condition = bodies[dict(_called(loop.attributes))['condition']]
    constants = re.findall(r' constant\((\d+)\)', '\n'.join(condition))
    return int(constants[0]) if len(constants) == 1 else 1


def scope_of(op_name: str) -> tuple[str, str]:
    """(Part of the model or step, pass) of an instruction."""
    scope = next((scope for part, scope in _SCOPES if part in op_name), 'optimizer')
    if scope == 'optimizer':
        return scope, 'update'
    if 'rematted_computation' in op_name:
        return scope, 'forward again'
    return scope, 'backward' if 'transpose(' in op_name else 'forward'


_BUNDLE = re.compile(r'\s*(?:0x)?[0-9a-f]+\s+(?:[A-Z]{2}:?\s*)*:?\s*((?:>\s*)*)\{')


@functools.cache
def attention_cycles(chip: str, rows: int, length: int, hidden: int, rate: float) -> dict[str, int]:
    """Cycles of `attention_forward` and `attention_backward` on a chip.

    A new process compiles them, because libtpu reads its dump flags only when it starts.

    Args:
      chip: as topologies name it, such as v5e.
      rows, length, hidden: of the kernel's queries, on one chip.
      rate: of dropout.
    """
    from bert_jax.model.attention_kernel import grids

    shape = '1x1x1' if chip in _MEGACORE else '1x1'
    with tempfile.TemporaryDirectory(prefix='bert_jax_') as folder:
        dump = (f"{os.environ.get('LIBTPU_INIT_ARGS', '')} --xla_jf_dump_to={folder} "
                '--xla_jf_dump_llo_text=true')
        subprocess.run(
            [sys.executable, '-m', __name__, f'{chip}:{shape}',
             *map(str, (rows, length, hidden, rate))],
            env=os.environ | {'LIBTPU_INIT_ARGS': dump}, check=True, capture_output=True)
        result = {}
        for name, (groups, steps) in grids(rows, length, hidden).items():
            # Other files of the same ending are of earlier stages.
            path, = (p for p in glob.glob(f'{folder}/*{name}*-final_bundles.txt')
                     if 'schedule-analysis' not in p and '-TLP-' not in p and '<late' not in p)
            with open(path, encoding='utf-8', errors='replace') as file:
                once, each = bundles(file.read())
            result[name] = once + each * steps * -(-groups // (2 if chip in _MEGACORE else 1))
    return result


def bundles(text: str) -> tuple[int, int]:
    """Instruction bundles of a schedule: (number run once, number run in each step of its loop).

    A loop within it is of scores that float32's exponents cannot hold: it is not counted.
    """
    depths = [match[1].count('>') for match in map(_BUNDLE.match, text.splitlines()) if match]
    return depths.count(0), depths.count(1)


def _compile(topology: str, rows: int, length: int, hidden: int, rate: float) -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    from bert_jax.model.attention_kernel import HEAD_DIM, kernel_attention

    device = SingleDeviceSharding(open_topology(topology)[0])

    def both(qkv: Any, bias: Any, segments: Any, keys: Any, gradient: Any) -> tuple[jax.Array, ...]:
        def attend(qkv: Any, bias: Any) -> jax.Array:
            return kernel_attention(qkv, bias, segments, keys if rate else None, 0, rate=rate)

        context, back = jax.vjp(attend, qkv, bias)
        return context, *back(gradient)

    heads = (hidden // HEAD_DIM, HEAD_DIM)
    jax.jit(both).lower(*(
        jax.ShapeDtypeStruct(shape, dtype, sharding=device) for shape, dtype in (
            ((rows, length, 3, *heads), jnp.bfloat16), ((3, *heads), jnp.float32),
            ((rows, length), jnp.int32), ((rows, 2), jnp.uint32),
            ((rows, length, *heads), jnp.bfloat16))
    )).compile()


if __name__ == '__main__':
    topology, rows, length, hidden, rate = sys.argv[1:]
    _compile(topology, int(rows), int(length), int(hidden), float(rate))
