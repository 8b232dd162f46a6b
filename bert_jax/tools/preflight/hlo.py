"""Reads the text of a compiled TPU program: its instructions, and what each of them takes."""

import functools
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from bert_jax.kernels.attention_tiles import grid_in_name
from bert_jax.tools.preflight.schedules import Schedule

# The compiler writes 2^63 - 1 where it has no estimate.
_LEAST_SENTINEL = 1 << 60
_KERNEL = 'tpu_custom_call'  # a Pallas kernel; custom calls with other targets cost nothing
_DTYPE_BYTES = {
    'pred': 1, 'bf16': 2, 'f16': 2, 's16': 2, 'u16': 2, 's8': 1, 'u8': 1, 's4': 1, 'u4': 1,
    'f64': 8, 's64': 8, 'u64': 8, 'c64': 8,
}

# (Part of an op_name, scope): an instruction's scope is that of the first part in its op_name.
_SCOPES = (
    ('optimizer', 'optimizer'), ('predictions', 'head'), ('seq_relationship', 'head'),
    ('pooler', 'head'), ('BPS,', 'head'), ('MV,', 'head'), ('H,VH', 'head'),
    ('take_along_axis', 'head'), ('embeddings', 'embeddings'), ('LayerNorm', 'layer norm'),
    ('self/qkv', 'qkv'), ('self/query', 'qkv'), ('self/key_value', 'qkv'),
    ('attention/self', 'attention'), ('attention/output', 'attention output'),
    ('intermediate', 'intermediate'), ('/output/', 'output'), ('features/', 'model, other'),
    ('BertFor', 'model, other'), ('jvp()', 'head'), ('while/body', 'accumulation'),
)

# "ENTRY %main (a: f32[8]) -> f32[8] {"
_COMPUTATION = re.compile(r'(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) (?:\(.*)?\{$')
# Layouts have brackets too: f32[8,8]{1,0:T(8,128)}.
_INSTRUCTION = re.compile(
    r'\s+(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<result>.+?) (?P<opcode>[\w-]+)'
    r'\((?P<operands>.*?)\)(?P<attributes>, .*|)$')
_COMMENT = re.compile(r'/\*.*?\*/')  # the text numbers every fifth operand
_ARRAY = re.compile(r'(?P<dtype>[a-z]+\d*[a-z\d]*)\[(?P<dims>[\d,]*)\](?P<layout>\{[^}]*\})?')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CALLED = re.compile(r'(body|condition|calls|to_apply)=%?([\w.-]+)')
_SEVERAL_CALLED = re.compile(r'(?:branch_computations|called_computations)=\{([^}]*)\}')
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ESTIMATED_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_ITERATION_BOUNDS = re.compile(r'"iteration_bounds":\[([^]]*)\]')
_MEGACORE_DIM = re.compile(r'"megacore_split_dim":"(\d+)"')
# A fusion that carries a message in flight: where its own arrays end and its own operands begin.
_OWN_ARRAYS = re.compile(
    r'"output_tuple_original_end":"(?P<last_result>\d+)",'
    r'"operand_original_start":"(?P<first_operand>\d+)"')


class Array(NamedTuple):
    """An array of a result."""

    dtype: str
    shape: tuple[int, ...]
    in_hbm: bool = True

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * _DTYPE_BYTES.get(self.dtype, 4)

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

    @property
    def is_kernel(self) -> bool:
        """Whether it is a Pallas kernel."""
        return f'"{_KERNEL}"' in self.attributes

    @property
    def estimated_cycles(self) -> int | None:
        """The compiler's estimate; None if there is none, or only the sentinel."""
        match = _ESTIMATED_CYCLES.search(self.attributes)
        if match is None or int(match[1]) >= _LEAST_SENTINEL:
            return None
        return int(match[1])

    @property
    def takes_time(self) -> bool:
        return self.is_kernel or _ESTIMATED_CYCLES.search(self.attributes) is not None

    def called(self) -> list[tuple[str, str]]:
        """(Role, name) of the computations that it calls."""
        result = _CALLED.findall(self.attributes)
        for names in _SEVERAL_CALLED.findall(self.attributes):
            for name in re.findall(r'%?([\w.-]+)', names):
                result.append(('branch', name))
        return result


class CompiledText:
    """The text of a compiled program.

    Attributes:
      instructions: those that a step runs, in their order.
    """

    def __init__(self, text: str):
        self.instructions = _read_instructions(text)
        self._by_name: dict[str, Instruction] = {}
        self._products: dict[str, list[Instruction]] = {}  # by computation
        for instruction in self.instructions:
            self._by_name[instruction.name] = instruction
            if instruction.opcode in ('convolution', 'dot'):
                products = self._products.setdefault(instruction.computation, [])
                products.append(instruction)

    def operand(self, instruction: Instruction, number: int) -> Array:
        return self._by_name[instruction.operands[number]].arrays[0]

    def operand_arrays(self, instruction: Instruction) -> tuple[Array, ...]:
        """The arrays of all operands."""
        result: list[Array] = []
        for name in instruction.operands:
            result.extend(self._by_name[name].arrays)
        return tuple(result)

    def timed(self) -> Iterator[tuple[Instruction, int | None]]:
        """Instructions that take time, with estimated cycles; None for kernels and sentinels."""
        for instruction in self.instructions:
            if instruction.takes_time:
                yield instruction, instruction.estimated_cycles

    def bytes_moved(self, instruction: Instruction) -> int:
        """Bytes of its operands and results in HBM; arrays in on-chip memory do not count."""
        results = instruction.arrays
        operands = instruction.operands
        own = _OWN_ARRAYS.search(instruction.attributes)
        if own:  # the other arrays belong to a message in flight
            results = results[: int(own['last_result']) + 1]
            operands = operands[int(own['first_operand']):]
        arrays = list(results)
        # A kernel's operands name an array once for each of its parts that a grid step takes.
        for name in set(operands):
            if name in self._by_name:  # a parameter has its number there
                arrays.extend(self._by_name[name].arrays)
        return sum(array.bytes for array in arrays if array.in_hbm)

    def product(self, instruction: Instruction) -> float:
        """FLOPs of the matrix product within a fusion; an overestimate for a batched product."""
        fused = dict(instruction.called()).get('calls', '')
        return sum(self._product_flops(product) for product in self._products.get(fused, ()))

    def _product_flops(self, product: Instruction) -> float:
        """FLOPs of [m, k] x [k, n]: twice the root of the product of all three arrays' sizes."""
        left = self.operand(product, 0)
        right = self.operand(product, 1)
        sizes = [math.prod(array.shape) for array in (product.arrays[0], left, right)]
        return 2 * math.sqrt(math.prod(sizes))

    def trips(self, instruction: Instruction, cores: int) -> int:
        """The trip count of an instruction's loop over tiles, on one of the cores that share it."""
        if instruction.is_kernel:
            grid = grid_in_name(instruction.name + instruction.op_name)
            if grid is not None:  # its first dim is that which cores share
                return math.prod(grid[1:]) * math.ceil(grid[0] / cores)
        window = _ITERATION_BOUNDS.search(instruction.attributes)
        bounds = [int(size) for size in re.findall(r'\d+', window[1])] if window else []
        split = _MEGACORE_DIM.search(instruction.attributes)
        if split is None:
            return math.prod(bounds)
        dim = int(split[1])
        if dim >= len(bounds):
            return math.ceil(math.prod(bounds) / cores)
        bounds[dim] = math.ceil(bounds[dim] / cores)
        return math.prod(bounds)

    def schedules(self, by_name: dict[str, Schedule]) -> dict[str, Schedule]:
        """`by_name` (from `take_schedules`) with schedules for instructions equal to those in it.

        The compiler writes the schedule of only one of several equal instructions.
        """
        timed = [instruction for instruction, _ in self.timed()]
        known = {}
        for instruction in timed:
            if instruction.name in by_name:
                known[self._schedule_key(instruction)] = by_name[instruction.name]
        result = {}
        for instruction in timed:
            key = self._schedule_key(instruction)
            if key in known:
                result[instruction.name] = by_name.get(instruction.name, known[key])
        return result

    def _schedule_key(self, instruction: Instruction) -> tuple[Any, ...]:
        """Instructions with the same key have the same schedule."""
        window = _ITERATION_BOUNDS.search(instruction.attributes)
        operands = [
            self._by_name[name].arrays for name in instruction.operands if name in self._by_name]
        return (
            instruction.opcode, re.sub(r'[.\d]+$', '', instruction.name), instruction.arrays,
            window and window[0], tuple(operands))


def scope_of(op_name: str) -> tuple[str, str]:
    """(Part of the model or step, pass) of an instruction."""
    scope = 'optimizer'
    for part, its_scope in _SCOPES:
        if part in op_name:
            scope = its_scope
            break
    if scope == 'optimizer':
        return scope, 'update'
    if 'rematted_computation' in op_name:
        return scope, 'forward again'
    if 'transpose(' in op_name:
        return scope, 'backward'
    return scope, 'forward'


def _read_instructions(text: str) -> list[Instruction]:
    """The instructions that a step runs, each with the number of times that it does."""
    computations, entry = _split_computations(text)
    times = dict.fromkeys(computations, 0)
    times[entry] = 1
    result = []
    for name in reversed(computations):  # callers come after what they call
        if not times[name]:
            continue
        for line in reversed(computations[name]):
            instruction = _parse(line, name, times[name])
            if instruction is None:
                continue
            result.append(instruction)
            for role, called in instruction.called():
                trips = _trip_count(instruction, computations) if role == 'body' else 1
                times[called] = times.get(called, 0) + times[name] * trips
    result.reverse()
    return result


def _split_computations(text: str) -> tuple[dict[str, list[str]], str]:
    """(The lines of each computation by its name, the name of the one that a step enters)."""
    computations: dict[str, list[str]] = {}
    lines: list[str] = []
    entry = ''
    for line in text.splitlines():
        heading = _COMPUTATION.match(line)
        if heading:
            lines = computations.setdefault(heading['name'], [])
            if heading['entry']:
                entry = heading['name']
        elif line.startswith('  '):
            lines.append(line)
    return computations, entry


def _parse(line: str, computation: str, times: int) -> Instruction | None:
    match = _INSTRUCTION.match(_COMMENT.sub('', line))
    if not match:
        return None
    operands = [
        operand.split(' ')[-1].lstrip('%') for operand in match['operands'].split(', ')]
    op_name = _OP_NAME.search(match['attributes'])
    return Instruction(
        name=match['name'], opcode=match['opcode'], arrays=_parse_arrays(match['result']),
        operands=tuple(operands), attributes=match['attributes'],
        op_name=op_name[1] if op_name else '', computation=computation, times=times)


@functools.lru_cache(1 << 14)
def _parse_arrays(text: str) -> tuple[Array, ...]:
    arrays = []
    for match in _ARRAY.finditer(text):
        dims = [int(size) for size in match['dims'].split(',') if size]
        on_chip = 'S(' in (match['layout'] or '')
        arrays.append(Array(match['dtype'], tuple(dims), in_hbm=not on_chip))
    return tuple(arrays)


def _trip_count(loop: Instruction, computations: dict[str, list[str]]) -> int:
    """The trip count of a loop: the known one, else the constant in its condition, else 1."""
    known = _TRIP_COUNT.search(loop.attributes)
    if known:
        return int(known[1])
    condition = computations[dict(loop.called())['condition']]
    constants = re.findall(r' constant\((\d+)\)', '\n'.join(condition))
    return int(constants[0]) if len(constants) == 1 else 1
