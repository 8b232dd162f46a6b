"""Messages between the chips of a compiled program: how large they are, and who waits for them."""

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.tools.preflight.cards import Switch
from bert_jax.tools.preflight.groups import read_groups
from bert_jax.tools.preflight.hlo import Array, CompiledText, Instruction, scope_of
from bert_jax.tools.preflight.links import Groups, Leg, Network, Orders

# The compiler's collectives.
KINDS = (
    'all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all', 'collective-permute',
    'collective-broadcast', 'ragged-all-to-all',
)
_CHAIN = re.compile(r'channel_id=(\d+).*chain_id="(\d+)"')
# "StrategyND{colors:2 phases:2 cores:{4 4},{4 4} ... dim_used:{0 1},{1 0} ...", for each color the
# chips and the dims of its phases. Without dim_used, there is one phase.
_CORES = re.compile(r'Strategy\w*\{colors:\d+ phases:\d+ cores:((?:\{[\d ]+\},?)+)')
_DIMS = re.compile(r'dim_used:((?:\{[\d ]+\},?)+)')
_ONE_RING = '"emitter":"1D'


@dataclasses.dataclass(frozen=True)
class Message:
    """A message of a step.

    Attributes:
      kind: one of the compiler's collectives.
      arrays: what is sent; for a gather, the whole result.
      parts: instructions from its start to its end.
      seconds: what it takes if nothing else uses the links.
      axes: of the slice, by number, whose links it uses.
    """

    kind: str
    arrays: tuple[Array, ...]
    parts: list[Instruction]
    seconds: float
    axes: frozenset[int]

    @property
    def bytes(self) -> int:
        return _bytes(self.arrays)

    @property
    def is_chain(self) -> bool:
        """Whether it is spread over several instructions, rather than a start and an end."""
        return len({part.name for part in self.parts}) > 1 and self.parts[0].opcode == self.kind

    @property
    def times(self) -> int:
        """How often a step sends it."""
        return self.parts[0].times


def _bytes(arrays: Sequence[Array]) -> int:
    return sum(array.bytes for array in arrays)


def find_messages(text: CompiledText, network: Network | Switch) -> list[Message]:
    """The messages of a program, in the order of their starts.

    Args:
      text: of the program.
      network: of the devices that it was compiled for.
    """
    ends = {}
    for instruction in text.instructions:
        if instruction.opcode.endswith('-done'):
            ends[instruction.operands[0]] = instruction
    messages: dict[Any, Message] = {}
    for instruction in text.instructions:
        kind = instruction.opcode.removesuffix('-start')
        if kind not in KINDS:
            continue
        if kind == 'all-reduce' and instruction.computation.startswith('all-reduce-scatter'):
            kind = 'reduce-scatter'
        # A message that overlaps with computation is a chain of instructions on one channel. (The
        # channel alone does not tell: all messages of a shard_map share one.)
        chain = _CHAIN.search(instruction.attributes)
        key = chain.groups() if chain else instruction.name
        if key not in messages:
            messages[key] = _start_message(text, network, instruction, kind)
        end = ends.get(instruction.name, instruction)
        messages[key].parts.extend([instruction, end])
    return list(messages.values())


def _start_message(
    text: CompiledText, network: Network | Switch, instruction: Instruction, kind: str
) -> Message:
    """A message without parts.

    Args:
      text: of the program.
      network: of its devices.
      instruction: the message's first.
      kind: one of the compiler's collectives.
    """
    arrays = _sent_arrays(text, instruction, kind)
    groups = read_groups(instruction.attributes)
    seconds = network.seconds(
        kind, _bytes(arrays), groups, _read_orders(instruction.attributes, groups))
    return Message(kind, arrays, [], seconds, network.axes(groups))


def _read_orders(attributes: str, groups: Groups) -> Orders:
    """The legs of each color by the compiler's strategy; () if it wrote none that is read here."""
    cores = _CORES.search(attributes)
    if cores is None:
        if _ONE_RING in attributes and groups:
            return ((Leg(0, len(groups[0])),),)
        return ()
    dims = _DIMS.search(attributes, cores.end())
    sizes_of_colors = _read_lists(cores[1])
    if dims is None:
        if any(len(sizes) > 1 for sizes in sizes_of_colors):
            return ()
        return tuple((Leg(0, sizes[0]),) for sizes in sizes_of_colors)
    orders = []
    for color_dims, sizes in zip(_read_lists(dims[1]), sizes_of_colors, strict=False):
        if len(set(color_dims)) == len(sizes):  # the text has zeros for dims of some colors
            orders.append(tuple(Leg(*leg) for leg in zip(color_dims, sizes, strict=True)))
    return tuple(orders)


def _read_lists(text: str) -> list[list[int]]:
    """[[4, 8], [8, 4]] of "{4 8},{8 4}"."""
    result = []
    for numbers in re.findall(r'\{([^}]*)\}', text):
        result.append([int(number) for number in numbers.split()])
    return result


def _sent_arrays(text: CompiledText, instruction: Instruction, kind: str) -> tuple[Array, ...]:
    if kind == 'reduce-scatter':
        return text.operand_arrays(instruction)
    if instruction.opcode.endswith('-start'):
        sent = text.operand_arrays(instruction)
        if kind == 'all-reduce':  # before, or as large as, its result
            return sent
        return instruction.arrays[len(sent):2 * len(sent)]  # of operands, results, flags
    return instruction.arrays


def collectives(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A table of messages, the most bytes first.

    An entry has kind, scope, largest array, count, bytes per step and chip, and seconds a step on
    the links. The compiler joins small messages, whose scope is then `several`. For a gather, bytes
    are those of its whole result, else those that a chip sends.
    """
    entries: dict[tuple[str, str, str], dict[str, Any]] = {}
    for message in messages:
        start = message.parts[0]
        scope = 'several'
        if len(message.arrays) == 1:
            scope, _ = scope_of(start.op_name)
        largest = str(max(message.arrays, key=lambda array: array.bytes))
        entry = entries.setdefault((message.kind, scope, largest), {
            'kind': message.kind, 'scope': scope, 'largest': largest, 'count': 0, 'bytes': 0,
            'seconds': 0.0})
        entry['count'] += message.times
        entry['bytes'] += message.times * message.bytes
        entry['seconds'] += message.times * message.seconds
    return sorted(entries.values(), key=lambda entry: -entry['bytes'])


@dataclasses.dataclass(eq=False)  # equal messages are not the same one
class _Transfer:
    """A message in flight.

    Attributes:
      axes: whose links it uses.
      carriers: positions of the instructions in which it moves; None: all.
      left: seconds on the links that it still needs.
    """

    axes: frozenset[int]
    carriers: frozenset[int] | None
    left: float

    def moves_in(self, position: int) -> bool:
        return self.carriers is None or position in self.carriers


class _Links:
    """The links of the axes, and the messages in flight that share them, first come, first served.

    Messages on different axes do not hinder each other.
    """

    def __init__(self) -> None:
        self._transfers: list[_Transfer] = []

    def start(self, transfer: _Transfer) -> None:
        self._transfers.append(transfer)

    def run(self, position: int, seconds: float) -> None:
        """Lets messages move while the instruction at `position` takes so many seconds."""
        self._move([item for item in self._transfers if item.moves_in(position)], seconds)

    def finish(self, transfer: _Transfer) -> float:
        """Lets a message arrive; returns the seconds that this takes.

        Others that need no instruction move meanwhile, on axes that it leaves free.
        """
        seconds = transfer.left
        self._transfers.remove(transfer)
        free = [item for item in self._transfers if item.carriers is None]
        self._move([transfer, *free], seconds)
        return seconds

    def _move(self, transfers: Sequence[_Transfer], seconds: float) -> None:
        free: dict[int, float] = collections.defaultdict(lambda: seconds)  # by axis
        for transfer in transfers:
            moved = min([transfer.left, *(free[axis] for axis in transfer.axes)])
            transfer.left -= moved
            for axis in transfer.axes:
                free[axis] -= moved


def waiting_seconds(
    text: CompiledText, messages: Sequence[Message], *, taken: Mapping[str, float]
) -> float:
    """Seconds of a step in which a chip only waits for messages, as the compiler ordered them.

    A message that is a chain of parts moves within the instructions that its parts are fused with:
    their code sends its pieces on. One with a start and an end of its own moves by itself while the
    instructions between them run, but for loops among them, whose time is not counted. Any other
    moves while the chip waits for it.

    Args:
      text: of the program.
      messages: of the program.
      taken: seconds of its instructions, by name; those that are missing take none.
    """
    positions = _positions(text)
    starts: dict[int, list[_Transfer]] = {}
    ends: dict[int, list[_Transfer]] = {}
    for message in messages:
        places = frozenset(positions[part.name] for part in message.parts)
        carriers = places if message.is_chain else None
        transfer = _Transfer(message.axes, carriers, message.seconds)
        starts.setdefault(min(places), []).append(transfer)
        ends.setdefault(max(places), []).append(transfer)
    waited = 0.0
    links = _Links()
    for position, instruction in enumerate(text.instructions):
        for transfer in starts.get(position, ()):
            links.start(transfer)
        links.run(position, taken.get(instruction.name, 0.0))
        for transfer in ends.get(position, ()):
            waited += links.finish(transfer) * instruction.times
    return waited


def _positions(text: CompiledText) -> dict[str, int]:
    """Where instructions run, by name; those within a fusion run where the fusion does."""
    positions: dict[str, int] = {}
    fusions: dict[str, int] = {}  # positions of fused computations
    # In reverse, because callers come after what they call.
    for position, instruction in reversed(list(enumerate(text.instructions))):
        place = fusions.get(instruction.computation, position)
        positions[instruction.name] = place
        for role, called in instruction.called():
            if role == 'calls':
                fusions[called] = place
    return positions
