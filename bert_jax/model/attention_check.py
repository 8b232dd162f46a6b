"""Whether fused attention is right on this chip: it is compared with XLA before it is used.

A compiler that is newer than the kernels may fail on them, or compile them wrongly.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config.bert_config import BertConfig
from bert_jax.kernels import dropout as drop
from bert_jax.kernels.attention_tiles import HEAD_DIMS, LANES
from bert_jax.model.attention import attend, why_unsupported
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.errors import InputError, first_line
from bert_jax.runtime.hosts import say

TOLERANCE = 0.03  # of the largest element: bfloat16 keeps 8 bits, and sums are in another order
_CHECKED_LENGTH = 200  # not a multiple of a kernel's tiles
_CHECKED_SHORT_LENGTH = 100  # the GPU kernels take such a row as one block
_CHECKED_LONG_LENGTH = 1100  # that of the kernel for long rows


class _Fused(NamedTuple):
    """A fused implementation that 'auto' may choose on a platform.

    Attributes:
      name: of the implementation.
      rate: of dropout, at which it is compared with XLA.
      lengths: of rows, at which it is.
      chosen: 'with dropout' or 'without dropout' if it is chosen only there, else ''.
    """

    name: str
    rate: float
    lengths: tuple[int, ...]
    chosen: str = ''


_FUSED = {
    'tpu': (_Fused('kernel', 0.1, (_CHECKED_LENGTH,)),),
    'gpu': (
        _Fused('kernel', 0.1, (_CHECKED_SHORT_LENGTH, _CHECKED_LENGTH), 'with dropout'),
        _Fused('cudnn', 0.0, (_CHECKED_LENGTH,), 'without dropout'),
    ),
}


class _Case(NamedTuple):
    """The options of a model that decide which program its fused attention is.

    Attributes:
      head_dim: of its heads.
      window: of a layer; 0: it is global.
      rotary_base: of that layer's positions; 0: they are in a table.
      length: of a row.
    """

    head_dim: int
    window: int
    rotary_base: float
    length: int


def _cases(model: BertConfig, fused: _Fused) -> list[_Case]:
    """Those of a model's layers."""
    lengths = [*fused.lengths]
    if model.max_length >= _CHECKED_LONG_LENGTH:
        lengths.append(_CHECKED_LONG_LENGTH)
    cases = set()
    for layer in range(model.num_layers):
        options = model.of_layer(layer)
        base = options.rotary_base if options.positions == 'rotary' else 0.0
        for length in lengths:
            cases.add(_Case(options.head_dim, options.local_attention, base, length))
    return sorted(cases)


@functools.cache
def _error_of(fused: _Fused, case: _Case) -> str:
    """Why a fused implementation is wrong in a case on this chip; '' if it is right."""
    try:
        error = max_relative_error(fused.name, fused.rate, case)
    except Exception as raised:  # of the compiler, of many types
        return first_line(raised)
    if error <= TOLERANCE:
        return ''
    return f'it differs from XLA by {error:.1%} of the largest element'


def config_on_chip(
    model: Mapping[str, Any], *, drops: bool = True, **computation: Any
) -> ModelConfig:
    """The config of a model that is computed on this chip.

    Args:
      model: every field of `BertConfig`.
      drops: as for `failing_attention`.
      **computation: the other fields of `ModelConfig`, but for `failing_attention`.

    Raises:
      InputError: `attention` names a fused implementation that fails on this chip.
    """
    attention = computation.get('attention', 'auto')
    failing = failing_attention(attention, BertConfig(**model), drops=drops)
    return ModelConfig(**model, **computation, failing_attention=failing)


def failing_attention(
    attention: str, model: BertConfig, *, drops: bool = True
) -> tuple[str, ...]:
    """The fused implementations that fail on this chip, which 'auto' then leaves to XLA.

    Args:
      attention: `model.attention`. If it is not 'auto', there are none.
      model: with the kinds of its layers.
      drops: whether attention is computed with dropout too, in training.

    Raises:
      InputError: `attention` names a fused implementation that fails on this chip.
    """
    if attention != 'auto':
        _refuse_if_it_fails(attention, model)
        return ()
    failing = []
    for fused in _FUSED.get(jax.default_backend(), ()):
        if fused.chosen == 'with dropout' and not (drops and model.attention_dropout):
            continue
        where = f' {fused.chosen}' if fused.chosen else ''
        if model.relative_positions:
            say(f'note: attention{where} is computed by XLA, as {fused.name!r} adds no relative '
                'positions to scores')
            continue
        error = _first_error(fused, model)
        if error:
            say(f'note: attention{where} is computed by XLA, {fused.name!r} fails on this chip '
                f'({error})')
            failing.append(fused.name)
    return tuple(failing)


def _first_error(fused: _Fused, model: BertConfig) -> str:
    """Why a fused implementation is wrong in a layer of a model; '' if it is right in all."""
    for case in _cases(model, fused):
        error = _error_of(fused, case)
        if error:
            return error
    return ''


def _refuse_if_it_fails(name: str, model: BertConfig) -> None:
    """Refuses an implementation that this chip cannot run; it may differ from XLA."""
    for fused in _FUSED.get(jax.default_backend(), ()):
        if fused.name != name:
            continue
        try:
            max_relative_error(name, fused.rate, _cases(model, fused)[0])
        except Exception as raised:  # of the compiler, of many types
            raise InputError(
                f'config.model.attention={name!r} fails on this chip ({first_line(raised)}); '
                'choose auto or xla') from raised


def max_relative_error(name: str, rate: float, case: _Case) -> float:
    """The largest difference from XLA, of values and gradients, as a share of the largest element.

    It computes two rows on one device, one of two sequences and one with padding. It is 0 if the
    implementation does not take the case; XLA then computes it in a run too.

    Args:
      name: of the implementation.
      rate: of dropout on the probabilities.
      case: what to compute.
    """
    inputs = _checked_inputs(case)
    config = _checked_config(name, rate, case)
    if why_unsupported(name, config, case.length, rate > 0):
        return 0.0
    found = _context_and_gradients(config, inputs)
    expected = _context_and_gradients(dataclasses.replace(config, attention='xla'), inputs)
    errors = [
        float(np.abs(a - b).max() / np.abs(b).max())
        for a, b in zip(found, expected, strict=True)]
    return max(errors)


class _Inputs(NamedTuple):
    """Random arguments of `attend`, and a gradient of its result."""

    qkv: jax.Array
    bias: jax.Array
    segments: np.ndarray
    d_context: jax.Array


def _checked_config(name: str, rate: float, case: _Case) -> ModelConfig:
    """A layer of the fewest heads that every implementation takes."""
    num_heads = LANES // case.head_dim if case.head_dim in HEAD_DIMS else 2
    return ModelConfig(
        vocab_size=8, num_layers=1, hidden_size=num_heads * case.head_dim, num_heads=num_heads,
        intermediate_size=8, positions='rotary' if case.rotary_base else 'table',
        local_attention=case.window, rotary_base=case.rotary_base or 1.0, attention_dropout=rate,
        dtype='bfloat16', attention=name)


def _checked_inputs(case: _Case) -> _Inputs:
    """Two rows: one of two sequences, and one with padding, whose gradient is 0."""
    rng = np.random.default_rng(0)
    config = _checked_config('xla', 0.0, case)
    num_heads = config.num_heads
    qkv = rng.normal(size=(2, case.length, 3, num_heads, case.head_dim))
    d_context = rng.normal(size=(2, case.length, num_heads, case.head_dim))
    segments = np.ones((2, case.length), np.int32)
    segments[0, case.length * 3 // 5 :] = 2
    segments[1, case.length * 3 // 4 :] = 0
    bias = rng.normal(size=(3, num_heads, case.head_dim))
    return _Inputs(
        qkv=jnp.asarray(qkv, jnp.bfloat16),
        bias=jnp.asarray(bias, jnp.float32),
        segments=segments,
        d_context=jnp.asarray(d_context, jnp.bfloat16) * (segments > 0)[:, :, None, None])


def _context_and_gradients(config: ModelConfig, inputs: _Inputs) -> list[np.ndarray]:
    """Context and gradients of its projection, at real tokens, and of the bias; in float64."""
    rows = drop.dropout_keys(0, 1, jnp.arange(2))

    def context_of(qkv: jax.Array, bias: jax.Array) -> jax.Array:
        segments: Any = inputs.segments
        return attend(qkv, bias, segments, rows, 0, config=config)

    @jax.jit
    def run(qkv: jax.Array, bias: jax.Array, d_context: jax.Array) -> tuple[jax.Array, ...]:
        context, pull = jax.vjp(context_of, qkv, bias)
        return context, *pull(d_context)

    context, d_qkv, d_bias = jax.device_get(run(inputs.qkv, inputs.bias, inputs.d_context))
    real = inputs.segments > 0
    return [x.astype(np.float64) for x in (context[real], d_qkv[real], d_bias)]
