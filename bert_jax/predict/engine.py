"""The inference engine, from tokenized units to outputs: evaluation, predictions, ensembles.

Units are packed into rows of a few shapes, and rows into steps on all devices of a mesh. The host
tokenizes and packs the next steps while the devices compute.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.tasks.packing import Plan, Units, pack_whole, packed_batch, plan_once, unpack
from bert_jax.train.report import duration
from bert_jax.train.sharding import Layout, Mesh, local_rows, to_global

Params = Any
Outputs = dict[str, np.ndarray]
# From parameters and a packed batch (`tasks.packing`) to arrays [R, K, ...] by unit or [R, S, ...]
# by token. Each function is compiled once, so callers pass the same (or an equal) object each time.
Function = Callable[[Params, dict[str, jax.Array]], dict[str, jax.Array]]
TokenCost = Callable[[int], float]  # cost of a token, from the row length

# Most tokens of a step for each device; more are not faster.
_CPU_TOKENS = 1 << 12
_ACCELERATOR_TOKENS = 1 << 13
_ROW_STEP = 64  # row lengths are multiples of it
_SHARED_ROWS = (256, 512)  # lengths of rows that units share
# Savings that justify compiling a new shape: shares of the work and of one full step.
_NEW_SHAPE, _NEW_SHAPE_STEPS = 1.05, 0.5
_STEP_COST = 1 / 16  # fixed cost of any step, as a share of a full one
_AHEAD = 2  # chunks prepared while one is computed

Chunk = TypeVar('Chunk')
Made = TypeVar('Made')


class Shape(NamedTuple):
    """The shape of a compiled program: R, S and K."""

    rows: int
    row_length: int
    units_a_row: int


class Engine:
    """Runs functions over units, on all devices of a mesh.

    In a run of several processes, all call it with the same units, and all get all outputs.
    """

    def __init__(self, mesh: Mesh, *, token_cost: TokenCost):
        """Creates an engine; nothing is compiled yet.

        Args:
          mesh: its data and fsdp axes split the rows.
          token_cost: to choose row lengths by (`model.flops.token_flops`).
        """
        self._mesh, self._token_cost = mesh, token_cost
        layout = Layout(mesh)
        self._shards = layout.batch_shards
        # The most tokens of a step, padding included; but a row a device there always is.
        self._device_tokens = _CPU_TOKENS if layout.on_cpu else _ACCELERATOR_TOKENS
        self._used: dict[Function, set[Shape]] = collections.defaultdict(set)
        # All processes need all outputs; one process gathers what its devices hold.
        whole = NamedSharding(mesh, PartitionSpec()) if jax.process_count() > 1 else None
        self._compiled = functools.cache(functools.partial(jax.jit, out_shardings=whole))

    @property
    def tokens_a_step(self) -> int:
        """The most tokens of a step."""
        return self._device_tokens * self._shards

    def outputs(self, function: Function, params: Params, units: Units) -> Outputs:
        """Outputs [n, ...] by unit and [T, ...] by token of a set, in its order.

        It prints its progress every ten seconds.
        """
        started = shown = time.monotonic()

        def report(share: float) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown > 10 and jax.process_index() == 0:
                shown = now
                left = duration((now - started) * (1 / share - 1))
                print(f'predicting: {share:.0%}  eta {left}', flush=True)

        ((_, outputs),) = self.stream(
            function, params, [units], lambda units: (None, units), report=report)
        return outputs

    def stream(
        self, function: Function, params: Params, chunks: Iterable[Chunk],
        prepare: Callable[[Chunk], tuple[Made, Units]], *,
        report: Callable[[float], None] = lambda share: None,
    ) -> Iterator[tuple[Made, Outputs]]:
        """Outputs chunk by chunk, in order, with a few chunks in memory.

        Args:
          function: of packed batches.
          params: on the mesh.
          chunks: taken one by one in the caller's thread, a few ahead.
          prepare: makes the units of a chunk (for example, tokenizes) in another thread; its second
            result is returned with the outputs.
          report: receives the finished share of a chunk's steps, after each.

        Raises:
          The exceptions of `chunks` and `prepare`.
        """
        compiled = self._compiled(function)
        pool = concurrent.futures.ThreadPoolExecutor(1, 'units')

        def ready(chunk: Chunk) -> tuple[Made, Units, Plan | None]:
            made, units = prepare(chunk)
            return made, units, self._plan(function, units) if len(units) else None

        def ahead() -> Iterator[tuple[Made, Units, Plan | None]]:
            waiting: collections.deque[Any] = collections.deque()
            for chunk in chunks:
                waiting.append(pool.submit(ready, chunk))
                if len(waiting) >= _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

        def steps() -> Iterator[tuple[Made, Units, Plan | None, int, Any]]:
            for made, units, plan in ahead():
                if plan is None:
                    yield made, units, None, 0, None
                    continue
                for step in range(len(plan.units)):
                    yield made, units, plan, step, compiled(params, self._batch(units, plan, step))

        collected: Outputs = {}
        try:
            # Wait for a step only after the next is dispatched: devices always have work.
            for pair in itertools.pairwise(itertools.chain(steps(), [None])):
                assert pair[0] is not None
                made, units, plan, step, outputs = pair[0]
                if plan is not None:
                    unpack(units, plan, step, jax.device_get(outputs), collected)
                    report((step + 1) / len(plan.units))
                if plan is None or step == len(plan.units) - 1:
                    yield made, collected
                    collected = {}
        finally:  # the caller stops early, or an error
            pool.shutdown(cancel_futures=True)

    def _batch(self, units: Units, plan: Plan, step: int) -> Mapping[str, Any]:
        num_rows = int(plan.num_rows[step])
        local = local_rows(self._mesh, num_rows)
        batch = packed_batch(units, plan, step, local)
        del batch['unit_index'], batch['unit_weights']  # of losses
        if self._mesh.size == 1:  # jax brings arrays of the host to where the parameters are
            return batch
        return to_global(self._mesh, batch, num_rows, local)

    def _plan(self, function: Function, units: Units) -> Plan:
        """Packs units, into a compiled shape unless a new one is clearly better."""
        lengths, used = units.lengths, frozenset(self._used[function])
        longest = int(lengths.max())
        full = self.tokens_a_step * self._token_cost(_SHARED_ROWS[0])
        result: list[tuple[float, Shape, np.ndarray]] = []
        fitting = {shape.row_length for shape in used} | set(_SHARED_ROWS)
        fitting = {s for s in fitting if s >= longest} | {-(-longest // _ROW_STEP) * _ROW_STEP}
        for row_length in sorted(fitting if lengths.sum() > _ROW_STEP else {_ROW_STEP}):
            rows_n = pack_whole(lengths, row_length)
            num_rows, units_a_row = int(rows_n.max()) + 1, int(np.bincount(rows_n).max())
            new = Shape(
                self._even(num_rows, row_length), row_length, 1 << (units_a_row - 1).bit_length()
            )
            known = {
                s for s in used if s.row_length == row_length and s.units_a_row >= units_a_row
            }
            for shape in sorted({new, *known}):
                work = shape.rows * row_length * self._token_cost(row_length)
                cost = -(-num_rows // shape.rows) * (work + _STEP_COST * full)
                if shape not in used:
                    cost = cost * _NEW_SHAPE + _NEW_SHAPE_STEPS * full
                result.append((cost, shape, rows_n))
        _, shape, rows_n = min(result, key=lambda candidate: candidate[:2])
        self._used[function].add(shape)
        return plan_once(
            lengths, rows_n, row_length=shape.row_length, rows_a_step=shape.rows,
            units_a_row=shape.units_a_row,
        )

    def _even(self, num_rows: int, row_length: int) -> int:
        """Rows of each step: even over the fewest steps, and a multiple of the shards."""
        most = max(1, self._device_tokens // row_length) * self._shards
        num_steps = -(-num_rows // most)
        return -(-num_rows // (num_steps * self._shards)) * self._shards
