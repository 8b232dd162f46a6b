"""Messages between the chips of a compiled program: how large they are, and who waits for them."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.tools.preflight.hlo import Array, CompiledText, Instruction, scope_of

_KINDS = (
    'all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all', 'collective-permute',
    'collective-broadcast', 'ragged-all-to-all',
)
_CHAIN = re.compile(r'channel_id=(\d+).*chain_id="(\d+)"')


@dataclasses.dataclass(frozen=True)
class Message:
    """A message of a step.

    Attributes:
      kind: one of the compiler's collectives.
      arrays: what is sent; for a gather, the whole result.
      parts: instructions from its start to its end.
    """

    kind: str
    arrays: tuple[Array, ...]
    parts: list[Instruction]

    @property
    def bytes(self) -> int:
        return sum(array.bytes for array in self.arrays)

    @property
    def bytes_on_links(self) -> int:
        """An all-reduce sends everything twice."""
        return 2 * self.bytes if self.kind == 'all-reduce' else self.bytes


def find_messages(text: CompiledText) -> list[Message]:
    """The messages of a program, in the order of their starts."""
    ends = {}
    for instruction in text.instructions:
        if instruction.opcode.endswith('-done'):
            ends[instruction.operands[0]] = instruction
    messages: dict[Any, Message] = {}
    for instruction in text.instructions:
        kind = instruction.opcode.removesuffix('-start')
        if kind not in _KINDS:
            continue
        if kind == 'all-reduce' and instruction.computation.startswith('all-reduce-scatter'):
            kind = 'reduce-scatter'
        # A message that overlaps with computation is a chain of instructions on one channel. (The
        # channel alone does not tell: all messages of a shard_map share one.)
        chain = _CHAIN.search(instruction.attributes)
        key = chain.groups() if chain else instruction.name
        if key not in messages:
            messages[key] = Message(kind, _sent_arrays(text, instruction, kind), [])
        end = ends.get(instruction.name, instruction)
        messages[key].parts.extend([instruction, end])
    return list(messages.values())


def _sent_arrays(text: CompiledText, instruction: Instruction, kind: str) -> tuple[Array, ...]:
    if kind == 'reduce-scatter':
        return text.operand_arrays(instruction)
    if instruction.opcode.endswith('-start') and kind != 'all-reduce':
        return instruction.arrays[1:2]  # of operand, result, flags
    return instruction.arrays


def collectives(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A table of messages, the most bytes first.

    An entry has kind, scope, largest array, count and bytes per step and chip. The compiler joins
    small messages, whose scope is then `several`. For a gather, bytes are those of its whole
    result, else those that a chip sends.
    """
    entries: dict[tuple[str, str, str], dict[str, Any]] = {}
    for message in messages:
        start = message.parts[0]
        scope = 'several'
        if len(message.arrays) == 1:
            scope, _ = scope_of(start.op_name)
        largest = str(max(message.arrays, key=lambda array: array.bytes))
        entry = entries.setdefault((message.kind, scope, largest), {
            'kind': message.kind, 'scope': scope, 'largest': largest, 'count': 0, 'bytes': 0})
        entry['count'] += start.times
        entry['bytes'] += start.times * message.bytes
    return sorted(entries.values(), key=lambda entry: -entry['bytes'])


class _Transfer(NamedTuple):
    """A message in flight: the position of its end, and its seconds on the links."""

    end: int
    seconds: float


def waiting_seconds(
    text: CompiledText, messages: Sequence[Message], *, taken: Mapping[str, float], links: float
) -> float:
    """Seconds of a step in which a chip only waits for messages, as the compiler ordered them.

    A message with a start and an end moves while the instructions between them run, but for loops
    among them, whose time is not counted. Messages share the links one after another.

    Args:
      text: of the program.
      messages: of the program.
      taken: seconds of its instructions, by name; those that are missing take none.
      links: bytes/s between chips.
    """
    positions = _positions(text)
    starts: dict[int, list[_Transfer]] = {}
    for message in messages:
        places = [positions[part.name] for part in message.parts]
        transfer = _Transfer(max(places), message.bytes_on_links / links)
        starts.setdefault(min(places), []).append(transfer)
    waited = now = links_are_free = 0.0
    arrivals: dict[int, float] = {}  # by the position of a message's end
    for position, instruction in enumerate(text.instructions):
        for transfer in starts.get(position, ()):
            links_are_free = max(now, links_are_free) + transfer.seconds
            arrivals[transfer.end] = links_are_free
        now += taken.get(instruction.name, 0.0)
        late = max(arrivals.pop(position, 0.0) - now, 0.0)
        waited += late * instruction.times
        now += late
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
