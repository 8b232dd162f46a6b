"""What the kernels of a compiled GPU program move and compute, and about how long they take.

The compiler gives no times for GPUs, so a kernel takes what its bytes take at the bandwidth that
such kernels reach, or its products' FLOPs at their rate, whichever is longer. Bytes and FLOPs are
counted; the two rates are estimates, except on the card that they were measured on (an H100).
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax.runtime.chips import Chip
from bert_jax.tools.preflight.hlo import CompiledText, Instruction, scope_of
from bert_jax.tools.preflight.messages import KINDS

# Shares of a card's peak and of its bandwidth that large kernels reach. Measured on an H100: 605 to
# 703 TFLOP/s of 989 in the products of BERT-Base's FFN, 3.0 TB/s of 3.35 in a copy
# (docs/log/preflight.md). Other cards are taken to reach the same shares.
_PRODUCTS_REACHED = 650 / 989
_BANDWIDTH_REACHED = 3.0 / 3.352
# A kernel of attention that keeps the scores to itself: chosen after cuDNN's in a step of Base with
# 64 rows of 512. Others were not measured.
_FUSED_ATTENTION_REACHED = 0.2
_LEAST_SECONDS = 2e-6  # of any kernel. An estimate
_AGAIN = 'forward again'  # the pass of rematerialised layers

# Instructions that start no kernel.
_NO_KERNEL = (
    'parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'while', 'call',
    'conditional', 'opt-barrier', 'after-all', 'partition-id', 'replica-id')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_BATCH_DIMS = re.compile(r'"lhs_batch_dimensions":\[([^]]*)\]')
_WORKSPACE = ('s8', 'u8')  # what a library wants for itself, as one more result

# (Scope of `hlo.scope_of`, whether it is a product): the name of the part, if it has another.
_PARTS = {
    ('qkv', True): 'projections', ('qkv', False): 'attention',
    ('attention output', True): 'projections', ('attention output', False): 'layer norm, dropout',
    ('intermediate', True): 'FFN products', ('intermediate', False): 'gelu',
    ('output', True): 'FFN products', ('output', False): 'layer norm, dropout',
    ('layer norm', False): 'layer norm, dropout',
}


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel of a step.

    Attributes:
      instruction: that starts it.
      is_product: whether it is a matrix product of a library.
      is_attention: whether it is attention as one kernel, whose FLOPs its text does not tell.
      bytes: that it reads and writes.
      flops: of the product; 0 for other kernels.
    """

    instruction: Instruction
    is_product: bool
    is_attention: bool
    bytes: int
    flops: float

    @property
    def part(self) -> tuple[str, str]:
        """(Part of the model or step, pass)."""
        scope, pass_name = scope_of(self.instruction.op_name)
        return _PARTS.get((scope, self.is_product), scope), pass_name


@dataclasses.dataclass
class PartTime:
    """The time and work of a part of the model in one pass of a step.

    Attributes:
      part: its name.
      pass_name: forward, backward, forward again, or update.
      kernels: their number.
      bytes: that they move.
      flops: of their products.
      seconds: that they take.
    """

    part: str
    pass_name: str
    kernels: int = 0
    bytes: int = 0
    flops: float = 0.0
    seconds: float = 0.0

    def record(self) -> dict[str, Any]:
        return {
            'scope': self.part, 'pass': self.pass_name, 'kernels': self.kernels,
            'bytes': self.bytes, 'flops': self.flops, 'seconds': self.seconds}


@dataclasses.dataclass(frozen=True)
class StepTime:
    """The time that the kernels of a step take, without messages.

    Attributes:
      parts: by part of the model, the longest first.
      seconds: of one run of each kernel, by the name of its instruction.
      products: seconds of the products of libraries.
      others: seconds of all other kernels.
    """

    parts: list[PartTime]
    seconds: dict[str, float]
    products: float
    others: float


def find_kernels(text: CompiledText) -> Iterator[Kernel]:
    """The kernels of a step; an instruction within a fusion is a part of the fusion's."""
    inner = _computations_within_kernels(text)
    for instruction in text.instructions:
        opcode = instruction.opcode
        if instruction.computation in inner or opcode in _NO_KERNEL:
            continue
        if opcode.removesuffix('-start') in KINDS or opcode.endswith(('-done', '-update')):
            continue
        yield _kernel(text, instruction)


def _computations_within_kernels(text: CompiledText) -> set[str]:
    """Names of computations that are fused, or applied to the elements of a reduction."""
    names = set()
    for instruction in text.instructions:
        for role, called in instruction.called():
            if role == 'calls' or (role == 'to_apply' and instruction.opcode != 'call'):
                names.add(called)
    return names


def _kernel(text: CompiledText, instruction: Instruction) -> Kernel:
    target = _TARGET.search(instruction.attributes)
    is_product = target is not None and target[1].startswith('__cublas')
    is_attention = (
        target is not None and not is_product
        and scope_of(instruction.op_name)[0] == 'attention')
    moved = text.bytes_moved(instruction)
    if target is not None:
        moved -= sum(array.bytes for array in instruction.arrays if array.dtype in _WORKSPACE)
    return Kernel(
        instruction, is_product, is_attention, bytes=moved,
        flops=_product_flops(text, instruction) if is_product else 0.0)


def _product_flops(text: CompiledText, product: Instruction) -> float:
    """FLOPs of [b, m, k] x [b, k, n]: twice the root of all three arrays' sizes over b."""
    left = text.operand(product, 0)
    right = text.operand(product, 1)
    sizes = [math.prod(array.shape) for array in (product.arrays[0], left, right)]
    dims = _BATCH_DIMS.search(product.attributes)
    batch = 1
    for dim in re.findall(r'\d+', dims[1] if dims else ''):
        batch *= left.shape[int(dim)]
    return 2 * math.sqrt(math.prod(sizes) / batch)


def step_time(text: CompiledText, chip: Chip, flops: float) -> StepTime:
    """Adds up what the kernels of a step take.

    Args:
      text: of the step.
      chip: what it runs on.
      flops: of the step on a card, by the formula. Those that the products in the text do not make
        up are of the attention kernels.
    """
    kernels = list(find_kernels(text))
    products_flops = 0.0
    for kernel in kernels:
        if kernel.part[1] != _AGAIN:  # the formula leaves out what is computed twice
            products_flops += kernel.instruction.times * kernel.flops
    of_attention = _attention_seconds(kernels, chip, max(0.0, flops - products_flops))
    parts: dict[tuple[str, str], PartTime] = {}
    by_name: dict[str, float] = {}
    products = others = 0.0
    for kernel in kernels:
        instruction = kernel.instruction
        seconds = max(
            _LEAST_SECONDS,
            kernel.bytes / (_BANDWIDTH_REACHED * chip.bandwidth),
            kernel.flops / (_PRODUCTS_REACHED * chip.peak_flops),
            of_attention.get(instruction.name, 0.0))
        by_name[instruction.name] = seconds
        times = instruction.times
        part = parts.setdefault(kernel.part, PartTime(*kernel.part))
        part.kernels += times
        part.bytes += times * kernel.bytes
        part.flops += times * kernel.flops
        part.seconds += times * seconds
        if kernel.is_product:
            products += times * seconds
        else:
            others += times * seconds
    ordered = sorted(parts.values(), key=lambda part: -part.seconds)
    return StepTime(ordered, by_name, products, others)


def _attention_seconds(
    kernels: Sequence[Kernel], chip: Chip, flops: float
) -> dict[str, float]:
    """Seconds of the products in each attention kernel, by the name of its instruction.

    Args:
      kernels: of the step.
      chip: what it runs on.
      flops: of all of them by the formula: a third in the forward, two in the backward pass. What
        the forward pass takes, it takes again where layers are rematerialised.
    """
    numbers = {'forward': 0, 'backward': 0}
    for kernel in kernels:
        if kernel.is_attention and kernel.part[1] != _AGAIN:
            numbers[_direction(kernel)] += kernel.instruction.times
    shares = {'forward': 1 / 3, 'backward': 2 / 3}
    result = {}
    for kernel in kernels:
        if kernel.is_attention:
            direction = _direction(kernel)
            of_kernel = flops * shares[direction] / max(numbers[direction], 1)
            result[kernel.instruction.name] = (
                of_kernel / (_FUSED_ATTENTION_REACHED * chip.peak_flops))
    return result


def _direction(kernel: Kernel) -> str:
    return 'backward' if kernel.part[1] == 'backward' else 'forward'
