"""Streams token sequences through the device and gives the results back in order.

    B: batch rows, S: sequence, H: hidden_size, m: sequences of a batch, p: positions of a batch
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from bert_jax.model.layers import ModelConfig
from bert_jax.predict import heads
from bert_jax.predict.rows import Batch, Tokens, choose_row_lengths, make_batches

_CPU_TOKENS = 1024  # of a batch; more is not faster there
_ACCELERATOR_TOKENS = 8192
_BATCHES = 32  # of a chunk: what is packed at a time
_CHUNK_VALUES = 1 << 27  # and at most this many result values
_SLOTS = 64  # positions that a head is computed at, at a time

Item = TypeVar('Item')


class Result(NamedTuple):
    """What a head gave for a batch, still on the device.

    Attributes:
      parts: trees of arrays [n, ...], to be joined along n.
      begins, counts: [m], which of the n belong to each sequence.
    """

    parts: list[Any]
    begins: np.ndarray
    counts: np.ndarray


# (hidden states [B, S, H] of the chosen layers, batch) -> Result
Read = Callable[[tuple[jax.Array, ...], Batch], Result]


def each_token(program: Callable[[tuple[jax.Array, ...]], jax.Array]) -> Read:
    """Reads one result a token: `program` gives [B * S, ...]."""
    def read(states: tuple[jax.Array, ...], batch: Batch) -> Result:
        return Result([program(states)], batch.starts, batch.lengths)

    return read


def each_sequence(program: Callable[[jax.Array, np.ndarray], jax.Array]) -> Read:
    """Reads one result a sequence: `program`, given the owners too, has one row for each."""
    def read(states: tuple[jax.Array, ...], batch: Batch) -> Result:
        begins = np.arange(len(batch.members))
        return Result([program(states[0], batch.owners)], begins, np.ones_like(begins))

    return read


def each_position(program: Callable[[jax.Array, np.ndarray, np.ndarray], Any]) -> Read:
    """Reads results at `Tokens.positions`: `program` is given them and the targets."""
    def read(states: tuple[jax.Array, ...], batch: Batch) -> Result:
        filled = -(-len(batch.positions) // _SLOTS) * _SLOTS
        pad = (0, filled - len(batch.positions))
        positions, targets = np.pad(batch.positions, pad), np.pad(batch.targets, pad)
        parts = [
            program(states[0], positions[i : i + _SLOTS], targets[i : i + _SLOTS])
            for i in range(0, filled, _SLOTS)
        ]
        return Result(parts, np.cumsum(batch.counts) - batch.counts, batch.counts)

    return read


class Runner:
    """Parameters on the device, and the stream through the encoder."""

    def __init__(self, params: heads.Params, config: ModelConfig):
        """Takes parameters of unrolled layers, the vocabulary padded, for `config`."""
        self.config = config
        self.params = jax.device_put(params)
        on_cpu = jax.default_backend() == 'cpu'
        self._tokens_per_batch = _CPU_TOKENS if on_cpu else _ACCELERATOR_TOKENS
        self._used: set[tuple[int, ...]] = set()

    def run(
        self, sequences: list[Tokens], read: Read, layers: tuple[int, ...] = (-1,)
    ) -> list[Any]:
        """For each sequence the tree of its results [count, ...], as numpy arrays."""
        if not sequences:
            return []
        lengths = np.array([len(s.ids) for s in sequences], np.int64)
        row_lengths = choose_row_lengths(lengths, self.config.hidden_size, self._used)
        self._used.add(row_lengths)
        results: list[Any] = [None] * len(sequences)
        running: tuple[Batch, Result] | None = None
        for batch in [*make_batches(sequences, row_lengths, self._tokens_per_batch), None]:
            before, running = running, None
            if batch is not None:
                states = heads.encode(
                    self.params, batch.inputs, config=self.config, layers=layers
                )
                running = batch, read(states, batch)
            if before is not None:  # fetched while the next batch runs
                _collect(*before, results)
        return results

    def stream(
        self, items: Iterable[tuple[Item, Iterable[Tokens]]], read: Read,
        layers: tuple[int, ...] = (-1,), values_per_token: int = 1,
    ) -> Iterator[tuple[Item, list[Any]]]:
        """Items in order, with the results of their sequences; memory stays constant.

        Args:
          items: anything, with the sequences that are wanted for it.
          read: what is wanted of them.
          layers: whose states `read` gets, see `heads.encode`.
          values_per_token: numbers that `read` gives a token, which bounds what is in memory.
        """
        limit = min(_BATCHES * self._tokens_per_batch, _CHUNK_VALUES // values_per_token)
        waiting: collections.deque[tuple[Item, int]] = collections.deque()
        ready: collections.deque[Any] = collections.deque()

        def sequences() -> Iterator[Tokens]:
            for item, wanted in items:
                count = 0
                for tokens in wanted:
                    count += 1
                    yield tokens
                waiting.append((item, count))

        for chunk in _chunks(sequences(), limit):
            ready += self.run(chunk, read, layers)
            while waiting and waiting[0][1] <= len(ready):
                item, count = waiting.popleft()
                yield item, [ready.popleft() for _ in range(count)]


def _collect(batch: Batch, result: Result, results: list[Any]) -> None:
    parts = jax.device_get(result.parts)
    joined = jax.tree.map(lambda *x: np.concatenate(x) if len(x) > 1 else x[0], *parts)
    for i, begin, count in zip(batch.members, result.begins, result.counts, strict=True):
        results[i] = jax.tree.map(operator.itemgetter(slice(begin, begin + count)), joined)


def _chunks(sequences: Iterable[Tokens], limit: int) -> Iterator[list[Tokens]]:
    """Consecutive sequences of about `limit` tokens together; an empty list at the end."""
    chunk: list[Tokens] = []
    size = 0
    for tokens in sequences:
        chunk.append(tokens)
        size += len(tokens.ids)
        if size >= limit:
            yield chunk
            chunk, size = [], 0
    yield chunk
