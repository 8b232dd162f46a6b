"""Several runs in one program: their states, numbers and batches stacked along a leading axis.

The runs are members of a sweep: of one model, task and batch size, with a seed and a rate each. On
one device they are computed side by side; on several, the axis of the members is split, and a
device computes its own members as if it were alone.

    M: members, padded to a multiple of the devices
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.runtime.errors import Diverged, Stopped
from bert_jax.train.compiled import CompiledStep, device_memory
from bert_jax.train.loop import Result, Run
from bert_jax.train.sharding import BATCH_AXES
from bert_jax.train.state import TrainState
from bert_jax.train.step import TrainStep

# Of a device's memory, left to what a step does not count: evaluation, larger batches to come.
_SPARE = 0.25


class Numbers(NamedTuple):
    """What members differ in, as arguments of their program."""

    seed: Any  # of dropout, uint32
    learning_rates: Any  # of the schedule's segments


class Together:
    """Trains runs in one program.

    A run asks for batches on the host, whole ones, and may end, fail or stop at any step: its place
    is computed on to no use, so that nothing is compiled again.
    """

    def __init__(
        self, update: Callable[[Numbers], TrainStep], state: TrainState, mesh: Mesh, members: int
    ):
        """Compiles nothing yet.

        Args:
          update: from a run's numbers to its step.
          state: shapes and shardings of one run's.
          mesh: of data-parallel devices alone.
          members: how many runs at most.
        """
        self._state, self._mesh = state, mesh
        self.size = -(-members // mesh.size) * mesh.size
        self._split = NamedSharding(mesh, PartitionSpec(BATCH_AXES))
        replicated = NamedSharding(mesh, PartitionSpec())
        each = self.size // mesh.size

        def on_own_devices(function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Any:
            return jax.shard_map(
                function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False,
                axis_names=set(mesh.axis_names),
            )

        def step(stacked: TrainState, numbers: Numbers, batches: Any) -> Any:
            one = jax.vmap(lambda state, own, batch: update(own)(state, batch))
            stacked, metrics = on_own_devices(one, split, split)(stacked, numbers, batches)
            return stacked, [
                {name: x[i] for name, x in metrics.items()} for i in range(self.size)
            ]

        def mine(i: jax.Array) -> jax.Array:
            return jax.lax.axis_index(BATCH_AXES) == i // each

        def put(stacked: TrainState, state: TrainState, i: jax.Array) -> TrainState:
            return jax.tree.map(
                lambda s, x: s.at[i % each].set(jnp.where(mine(i), x, s[i % each])), stacked, state)

        def get(stacked: TrainState, i: jax.Array) -> TrainState:
            return jax.tree.map(
                lambda s: jax.lax.psum(jnp.where(mine(i), s[i % each], 0), BATCH_AXES), stacked)

        split, whole = PartitionSpec(BATCH_AXES), PartitionSpec()
        shardings = jax.tree.map(lambda _: self._split, state)
        self._step = CompiledStep(
            jax.jit(step, donate_argnums=0, out_shardings=(shardings, replicated)))
        self._put = jax.jit(
            on_own_devices(put, (split, whole, whole), split), donate_argnums=0)
        self._get = jax.jit(
            on_own_devices(get, (split, whole), whole),
            out_shardings=jax.tree.map(lambda x: x.sharding, state))
        self._stacked: TrainState | None = None

    @property
    def _shapes(self) -> TrainState:
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((self.size, *x.shape), x.dtype, sharding=self._split),
            self._state)

    def fits(self, numbers: Numbers, batch: Mapping[str, np.ndarray]) -> bool:
        """Whether a device has room for the step, which is compiled for batches like this one.

        A device that does not say how much memory it has is a CPU: it has.
        """
        limit = device_memory(self._mesh.local_devices[0])
        if limit is None:
            return True
        shapes = {
            name: jax.ShapeDtypeStruct((self.size, *x.shape), x.dtype, sharding=self._split)
            for name, x in batch.items()
        }
        program, memory = self._step.compile(
            self._shapes, self._stack_numbers([numbers]), shapes)
        return program is not None and memory.total <= limit * (1 - _SPARE)

    def train(
        self, runs: Sequence[Run[Result]], slots: Sequence[Slot], numbers: Sequence[Numbers]
    ) -> list[Result | Diverged | Stopped]:
        """What each run returns, or what stopped it.

        Args:
          runs: at most as many as there is room for.
          slots: where each keeps its state.
          numbers: of each.
        """
        own = self._stack_numbers(numbers)
        found: list[Any] = [None] * len(runs)
        batches: dict[int, Any] = {}

        def advance(i: int, metrics: Any) -> None:
            batches.pop(i, None)
            try:
                batches[i] = runs[i].send(metrics)
            except StopIteration as end:
                found[i] = end.value
            except (Diverged, Stopped) as fault:
                found[i] = fault

        try:
            self._stacked = jax.jit(
                lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self._shapes),
                out_shardings=jax.tree.map(lambda x: x.sharding, self._shapes),
            )()
            for i, slot in enumerate(slots):
                advance(i, None)
                if i in batches:
                    self._stacked = self._put(self._stacked, slot.state, np.int32(i))
                    slot.moved(functools.partial(self._fetch, i))
            while batches:
                stacked = self._stack(batches)
                with jax.transfer_guard('disallow'):
                    self._stacked, metrics = self._step(self._stacked, own, stacked)
                for i in list(batches):
                    slots[i].changed()
                    advance(i, metrics[i])
        finally:
            self._stacked = None
            for run in runs:
                run.close()
        return found

    def _fetch(self, i: int) -> TrainState:
        state: TrainState = self._get(self._stacked, np.int32(i))
        return state

    def _stack_numbers(self, numbers: Sequence[Numbers]) -> Numbers:
        filled = [*numbers, *[numbers[0]] * (self.size - len(numbers))]
        stacked: Numbers = jax.device_put(
            Numbers(*(np.stack(x) for x in zip(*filled, strict=True))), self._split)
        return stacked

    def _stack(self, batches: Mapping[int, Mapping[str, np.ndarray]]) -> dict[str, jax.Array]:
        """Batches of one shape, the largest's: rows and columns of zeros count nowhere."""
        stacked = {}
        for name, first in next(iter(batches.values())).items():
            shapes = [batch[name].shape for batch in batches.values()]
            largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
            stacked[name] = np.zeros((self.size, *largest), first.dtype)
            for i, batch in batches.items():
                within = tuple(slice(size) for size in batch[name].shape)
                stacked[name][i][within] = batch[name]
        return jax.device_put(stacked, self._split)


class Slot:
    """Where a run finds its state: its own until it is stacked, then a copy out of the stack."""

    def __init__(self) -> None:
        self._state: Any = None
        self._fetch: Callable[[], TrainState] | None = None

    @property
    def state(self) -> TrainState:
        if self._state is None and self._fetch is not None:
            self._state = self._fetch()
        state: TrainState = self._state
        return state

    @state.setter
    def state(self, state: TrainState) -> None:
        self._state = state

    def moved(self, fetch: Callable[[], TrainState]) -> None:
        """The state is in the stack from now on."""
        self._state, self._fetch = None, fetch

    def changed(self) -> None:
        """A step was done."""
        self._state = None
