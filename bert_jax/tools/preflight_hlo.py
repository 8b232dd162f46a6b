"""Reads compiled TPU programs: topologies, cycles by scope, messages, kernel schedules."""

import collections
import functools
import importlib.util
import math
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from bert_jax.model.attention_kernel import grids
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.packages import quiet_stderr

# Number of dims of a slice, and the length of a pod's longest dim: beyond it libtpu aborts.
_SLICES = {'v4': (3, 16), 'v5p': (3, 24), 'v5e': (2, 16), 'v6e': (2, 16)}
_MEGACORE = ('v4', 'v5p')  # chips with two cores, which are one device in jax


def open_topology(name: str) -> list[Any]:
    """The devices of a slice, which need not exist; they are for the compiler only.

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
_KERNEL = 'tpu_custom_call'  # a Pallas kernel; custom calls with other targets cost nothing
_BYTES = {'pred': 1, 'bf16': 2, 'f16': 2, 's16': 2, 'u16': 2, 's8': 1, 'u8': 1, 's4': 1, 'u4': 1,
          'f64': 8, 's64': 8, 'u64': 8, 'c64': 8}

# (Part of an op_name, scope): an instruction's scope is that of the first part in its op_name.
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
    in_hbm: bool = True

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * _BYTES.get(self.dtype, 4)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Instruction(NamedTuple):
    """An instruction of a compiled program.

    Attributes:
      op_name: its origin in the Python program.
      computation: the computation that it is part of.
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
            for line in reversed(bodies[name]) if times[name] else ():
                if (parsed := _parse(line, name, times[name])) is None:
                    continue
                result.append(parsed)
                for role, called in _called(parsed.attributes):
                    often = _trips(bodies, parsed) if role == 'body' else 1
                    times[called] = times.get(called, 0) + times[name] * often
        self.instructions = result[::-1]
        self._by_name = {instruction.name: instruction for instruction in result}
        self._products: dict[str, list[Instruction]] = {}
        for instruction in result:
            if instruction.opcode in ('convolution', 'dot'):
                self._products.setdefault(instruction.computation, []).append(instruction)

    def operand(self, instruction: Instruction, number: int) -> Array:
        return self._by_name[instruction.operands[number]].arrays[0]

    def timed(self) -> Iterator[tuple[Instruction, int | None]]:
        """Instructions that take time, with estimated cycles; None for kernels and sentinels."""
        for i in self.instructions:
            if match := re.search(r'"estimated_cycles":"(\d+)"', i.attributes):
                yield i, int(match[1]) if int(match[1]) < _SENTINEL else None
            elif f'"{_KERNEL}"' in i.attributes:
                yield i, None

    def bytes_moved(self, instruction: Instruction) -> int:
        """Bytes of its operands and results in HBM; arrays in on-chip memory do not count."""
        results, names = instruction.arrays, instruction.operands
        if own := re.search(  # the other arrays belong to a message in flight
                r'"output_tuple_original_end":"(\d+)","operand_original_start":"(\d+)"',
                instruction.attributes):
            results, names = results[: int(own[1]) + 1], names[int(own[2]):]
        # A kernel's operands name an array once for each of its parts that a grid step takes.
        operands = [self._by_name[name].arrays for name in set(names) if name in self._by_name]
        return sum(array.bytes for arrays in (results, *operands) for array in arrays
                   if array.in_hbm)

    def product(self, instruction: Instruction) -> float:
        """FLOPs of the matrix product within a fusion; an overestimate for a batched product."""
        fused = self._products.get(dict(_called(instruction.attributes)).get('calls', ''), ())
        return sum(
            2 * math.sqrt(math.prod(math.prod(array.shape) for array in (
                i.arrays[0], *(self.operand(i, number) for number in range(2)))))
            for i in fused)

    def trips(self, instruction: Instruction, cores: int) -> int:
        """The trip count of an instruction's loop over tiles, on one of the cores that share it."""
        if f'"{_KERNEL}"' in instruction.attributes:
            for name in ('attention_forward', 'attention_backward'):
                if name in instruction.name + instruction.op_name:
                    rows, length, width = self.operand(instruction, 0).shape
                    groups, steps = grids(rows, length, width // 3)[name]
                    return steps * -(-groups // cores)
        window = re.search(r'"iteration_bounds":\[([^]]+)\]', instruction.attributes)
        bounds = [int(size) for size in re.findall(r'\d+', window[1])] if window else []
        if split := re.search(r'"megacore_split_dim":"(\d+)"', instruction.attributes):
            if (dim := int(split[1])) < len(bounds):
                bounds[dim] = -(-bounds[dim] // cores)
            else:
                bounds = [-(-math.prod(bounds) // cores)]
        return math.prod(bounds)

    def schedules(self, by_name: dict[str, 'Schedule']) -> dict[str, 'Schedule']:
        """`by_name` (from `read_schedules`) with schedules for instructions equal to those in it.

        The compiler writes the schedule of only one of several equal instructions.
        """
        def kind(i: Instruction) -> Any:
            window = re.search(r'"iteration_bounds":\[[^]]*\]', i.attributes)
            operands = (self._by_name[name] for name in i.operands if name in self._by_name)
            return (i.opcode, re.sub(r'[.\d]+$', '', i.name), i.arrays, window and window[0],
                    tuple(operand.arrays for operand in operands))

        timed = [i for i, _ in self.timed()]
        known = {kind(i): by_name[i.name] for i in timed if i.name in by_name}
        return {i.name: by_name.get(i.name) or known[kind(i)] for i in timed if kind(i) in known}

    def collectives(self) -> list[dict[str, Any]]:
        """Messages between chips: kind, scope, largest array, count and bytes per step and chip.

        The compiler joins small messages, whose scope is then `several`. For a gather, bytes are
        those of its whole result, else those that a chip sends.
        """
        result: dict[tuple[str, str, str], list[int]] = {}
        for kind, arrays, (i, *_) in self._messages():
            scope = scope_of(i.op_name)[0] if len(arrays) == 1 else 'several'
            largest = max(arrays, key=lambda array: array.bytes)
            entry = result.setdefault((kind, scope, str(largest)), [0, 0])
            entry[0] += i.times
            entry[1] += i.times * sum(array.bytes for array in arrays)
        return [
            {'kind': kind, 'scope': scope, 'largest': largest, 'count': count, 'bytes': size}
            for (kind, scope, largest), (count, size) in
            sorted(result.items(), key=lambda item: -item[1][1])]

    def _messages(self) -> list[tuple[str, tuple[Array, ...], list[Instruction]]]:
        """(Kind, arrays, instructions from its start to its end) of each message."""
        result: dict[Any, tuple[str, tuple[Array, ...], list[Instruction]]] = {}
        ends = {i.operands[0]: i for i in self.instructions if i.opcode.endswith('-done')}
        for i in self.instructions:
            kind = i.opcode.removesuffix('-start')
            if kind not in _COLLECTIVES:
                continue
            if kind == 'all-reduce' and i.computation.startswith('all-reduce-scatter'):
                kind = 'reduce-scatter'
            # A message that overlaps with computation is a chain of instructions on one channel.
            # (The channel alone does not tell: all messages of a shard_map share one.)
            chain = re.search(r'channel_id=(\d+).*chain_id="(\d+)"', i.attributes)
            arrays = i.arrays
            if kind == 'reduce-scatter':
                arrays = tuple(a for name in i.operands for a in self._by_name[name].arrays)
            elif i.opcode.endswith('-start') and kind != 'all-reduce':  # operand, result, flags
                arrays = arrays[1:2]
            _, _, parts = result.setdefault(chain.groups() if chain else i.name, (kind, arrays, []))
            parts += i, ends.get(i.name, i)
        return list(result.values())

    def waiting(self, seconds: dict[str, float], links: float) -> float:
        """Seconds of a step in which a chip only waits for messages, as the compiler ordered them.

        A message with a start and an end moves while the instructions between them run, but for
        loops among them, whose time is not counted. Messages share the links one after another. An
        all-reduce sends everything twice.

        Args:
          seconds: that instructions take, by name.
          links: bytes/s between chips.
        """
        places: dict[str, int] = {}
        fused: dict[str, int] = {}  # computations, which run where their callers do
        for number, i in reversed([*enumerate(self.instructions)]):
            places[i.name] = fused.get(i.computation, number)
            for role, called in _called(i.attributes):
                if role == 'calls':
                    fused[called] = places[i.name]
        starts: dict[int, list[tuple[int, float]]] = {}
        for kind, arrays, parts in self._messages():
            sent = sum(array.bytes for array in arrays) * (2 if kind == 'all-reduce' else 1)
            between = [places[i.name] for i in parts]
            starts.setdefault(min(between), []).append((max(between), sent / links))
        result = now = free = 0.0
        due: dict[int, float] = {}
        for number, i in enumerate(self.instructions):
            for end, duration in starts.get(number, ()):
                due[end] = free = max(now, free) + duration
            now += seconds.get(i.name, 0.0)
            late = max(due.pop(number, 0.0) - now, 0.0)
            result, now = result + late * i.times, now + late
        return result


# Name, result, opcode, operands, attributes. Layouts have brackets too: f32[8,8]{1,0:T(8,128)}.
_INSTRUCTION = re.compile(r'\s+(?:ROOT )?%?([\w.-]+) = (.+?) ([\w-]+)\((.*?)\)(, .*|)$')


def _parse(line: str, computation: str, times: int) -> Instruction | None:
    # The text has comments that number every fifth operand.
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
        Array(dtype, tuple(int(d) for d in dims.split(',') if d), 'S(' not in layout)
        for dtype, dims, layout in re.findall(
            r'([a-z]+\d*[a-z\d]*)\[([\d,]*)\](\{[^}]*\})?', text))


def _called(attributes: str) -> Iterator[tuple[str, str]]:
    """(role, name) of the computations that an instruction calls."""
    yield from re.findall(r'(body|condition|calls|to_apply)=%?([\w.-]+)', attributes)
    for many in re.findall(r'(?:branch_computations|called_computations)=\{([^}]*)\}', attributes):
        for one in re.findall(r'%?([\w.-]+)', many):
            yield 'branch', one


def _trips(bodies: dict[str, list[str]], loop: Instruction) -> int:
    """The trip count of a loop: the known one, else the constant in its condition, else 1."""
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


def num_cores(chip: str) -> int:
    """The cores that share the work of a device."""
    return 2 if chip in _MEGACORE else 1


class Schedule(NamedTuple):
    """The final schedule of an instruction, of which a core issues one bundle per cycle.

    Attributes:
      bundles: their number outside loops, in an iteration of the loop, and in loops within that.
      unit: the unit with the highest utilization, by libtpu's name: MXU, VALU, ...
    """

    bundles: tuple[int, int, int]
    unit: str = ''


def write_schedules(folder: str) -> None:
    """Makes libtpu, unless it is loaded already, write to `folder` what `read_schedules` reads."""
    stages = 'final_bundles|final_hlo-static-per-bundle-utilization'
    os.environ['LIBTPU_INIT_ARGS'] = (
        f"{os.environ.get('LIBTPU_INIT_ARGS', '')} --xla_jf_dump_to={folder} "
        f'--xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=({stages})')


def read_schedules(folder: str) -> dict[str, Schedule]:
    """Schedules of what was compiled since the last call, by instruction; deletes the files."""
    counts: dict[str, Any] = {}
    for entry in os.scandir(folder):
        # 1795574845998232302-fusion.12-02-final_bundles.txt
        match = re.fullmatch(
            r'\d+-(.+)-\d+-final_(bundles|hlo-static-per-bundle-utilization)\.txt', entry.name)
        if match:
            with open(entry.path, encoding='utf-8', errors='replace') as file:
                count = _bundles(file) if match[2] == 'bundles' else _fullest_unit(file)
            counts.setdefault(match[1], {})[match[2]] = count
        if entry.is_file():
            os.remove(entry.path)
    return {name: Schedule(count.pop('bundles'), *count.values())
            for name, count in counts.items() if any(count.get('bundles', ()))}


def _bundles(lines: Iterable[str]) -> tuple[int, int, int]:
    """Bundles of a schedule outside loops, in its loop, and in loops within that."""
    depths = collections.Counter(
        match[1].count('>') for match in map(_BUNDLE.match, lines) if match)
    return depths[0], depths[1], depths.total() - depths[0] - depths[1]


def _fullest_unit(lines: Iterable[str]) -> str:
    """The unit with the highest utilization.

    Args:
      lines: a table of units, their places in a bundle, and the places that each bundle takes.
    """
    table = [re.findall(r'\w[\w:]*', line) for line in lines if not line.startswith('==')]
    names, places, *used = [*filter(None, table)] or [['?'], ['1']]  # empty if the disk was full
    taken = [sum(map(int, column)) for column in zip(*used)] or [0]
    return max(zip(names, taken, map(int, places)), key=lambda unit: unit[1] / unit[2])[0]
