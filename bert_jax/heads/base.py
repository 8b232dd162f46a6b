"""The base of all heads: declaration, parameters in files, training on packed rows.

    B, R: rows, S: row length, H: hidden_size, K: sequences or examples a row, L: labels. Dims of
    parameters in files: V: vocabulary, P: positions, T: segment types, I: intermediate_size,
    N: heads, D: head_dim, U: half of hidden_size; 2, 3 and 4 are themselves
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.model.bilstm import BiLstm
from bert_jax.model.encoder import Bert
from bert_jax.model.flops import bilstm_flops, token_flops
from bert_jax.model.layers import ModelConfig
from bert_jax.train.sharding import BATCH_AXES

Params = Any
Batch = Mapping[str, jax.Array]
Sums = Mapping[str, jax.Array]  # metric sums and counts; they add up over batches and hosts
Format = Literal['tf1', 'huggingface']


class Tensor(NamedTuple):
    """A parameter: its name here and in the two file formats, and its dims.

    Kernels are [in, out] here and in TF1, [out, in] in Hugging Face files and in TF1's
    `output_weights`. In files, N and D are one dim, and `{part}` stands for query, key and value,
    which are fused here.

    Attributes:
      name: here.
      tf1, huggingface: in files.
      dims: of the array here; a comma separates in dims and out dims.
    """

    name: str
    tf1: str
    huggingface: str
    dims: str

    def file_names(self, form: Format) -> tuple[str, ...]:
        """The names in files of this format: one, or three for query, key and value."""
        name = getattr(self, form)
        parts = ('query', 'key', 'value') if '{part}' in name else ('',)
        return tuple(name.replace('{part}', part) for part in parts)

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Shape here; `sizes` by letter, from `sizes_of`."""
        return tuple(_size(dim, sizes) for dim in self.dims.replace(',', ''))

    def file_shape(self, form: Format, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Shape of each of `file_names`."""
        groups = self.dims.replace('3', '').split(',')
        shape = tuple(math.prod(_size(dim, sizes) for dim in group) for group in groups)
        return shape[::-1] if self._turned(form) else shape

    def from_files(
        self, form: Format, arrays: Sequence[np.ndarray], sizes: Mapping[str, int]
    ) -> np.ndarray:
        """Converts the arrays of files to the array here, float32 and contiguous."""
        dims = self.dims.replace(',', '')
        shape = tuple(_size(dim, sizes) for dim in dims if dim != '3')
        if self._turned(form):
            arrays = [_turn(x) for x in arrays]
        arrays = [x.reshape(shape) for x in arrays]
        if len(arrays) == 1:
            return np.ascontiguousarray(arrays[0], np.float32)
        return np.stack(arrays, axis=dims.index('3'), dtype=np.float32)

    def to_files(self, form: Format, array: np.ndarray) -> list[np.ndarray]:
        """The inverse of `from_files`; the arrays are contiguous."""
        dims = self.dims.replace(',', '')
        arrays = [array] if '3' not in dims else list(np.moveaxis(array, dims.index('3'), 0))
        num_in = len(self.dims.partition(',')[0].replace('3', '')) if ',' in self.dims else 0
        files = []
        for x in arrays:
            x = x.reshape(math.prod(x.shape[:num_in]), -1) if num_in else x.reshape(-1)
            files.append(_turn(x) if self._turned(form) else np.ascontiguousarray(x))
        return files

    def _turned(self, form: Format) -> bool:
        if form == 'huggingface':
            return self.name.endswith('/kernel')
        return self.tf1.endswith('output_weights')


def _turn(x: np.ndarray) -> np.ndarray:
    """A contiguous transpose. In strips it takes a third of the time of numpy's copy."""
    turned = np.empty(x.shape[::-1], x.dtype)
    for start in range(0, len(x), 16):
        turned[:, start : start + 16] = x[start : start + 16].T
    return turned


def _size(dim: str, sizes: Mapping[str, int]) -> int:
    return int(dim) if dim.isdigit() else sizes[dim]


class Part(NamedTuple):
    """Parameters that exist together, or not at all: those whose names begin with `prefix`."""

    prefix: str
    tensors: tuple[Tensor, ...]


POOLER = Part('bert/pooler/', (
    Tensor('bert/pooler/dense/kernel', 'bert/pooler/dense/kernel',
           'bert.pooler.dense.weight', 'H,H'),
    Tensor('bert/pooler/dense/bias', 'bert/pooler/dense/bias', 'bert.pooler.dense.bias', 'H'),
))


@dataclasses.dataclass(frozen=True)
class Head:
    """A model with a head: parameter names, module, loss and scores.

    This class is the model without a head. Losses and metrics are sums with counts, divided once:
    `totals` gives the divisors of the whole global batch before any of it is computed, so that a
    step gives the same result in parts and on many devices.

    Attributes:
      name: in `config.json` and in messages.
      title: for messages.
      classes: Hugging Face's classes with this head, each with its parts beside embeddings and
        layers; a model is written as the first whose parts all exist. None: no other format has
        its parameters, and they stay in the run.
      labelled: whether its outputs have names.
      problem_type: Hugging Face's setting for a class that several heads share.
      compares: whether the loss of an example depends on the others of its batch.
      shown: metrics of `score` in log lines, and their short names.
      config: of the encoder.
    """

    name: ClassVar[str] = ''
    title: ClassVar[str] = 'no head'
    classes: ClassVar[Mapping[str, tuple[Part, ...]]] = {'BertModel': (POOLER,)}
    labelled: ClassVar[bool] = False
    problem_type: ClassVar[str] = ''
    compares: ClassVar[bool] = False
    shown: ClassVar[Mapping[str, str]] = {}

    config: ModelConfig

    @classmethod
    def parts(cls) -> tuple[Part, ...]:
        """The parts of the head, without the pooler."""
        parts = {part: None for of_class in cls.classes.values() for part in of_class}
        return tuple(part for part in parts if part is not POOLER)

    @classmethod
    def needs_pooler(cls) -> bool:
        """Whether the head needs the pooler."""
        return bool(cls.parts()) and all(POOLER in parts for parts in cls.classes.values())

    @classmethod
    def portable(cls) -> bool:
        """Whether weights with this head can be written in other formats."""
        return bool(cls.classes)

    @classmethod
    def of_model(cls, config: ModelConfig, num_labels: int, inference: Mapping[str, Any]) -> Head:
        """The head of a trained model, for inference: each sequence is an example.

        Args:
          config: of the encoder.
          num_labels: outputs of its last layer.
          inference: how the run made its predictions (`Weights.inference`).

        Raises:
          InputError: `inference` lacks an argument of the head.
        """
        return cls(config)

    def init(self, rng: jax.Array) -> Params:
        """Parameters as `layers.Parameter`s."""
        raise NotImplementedError

    def totals(self, batch: Batch) -> Sums:
        """Divisors of the losses of this batch."""
        raise NotImplementedError

    def outputs(
        self, params: Params, batch: Batch, rows_Bx2: jax.Array | None = None
    ) -> dict[str, Any]:
        """Logits of a packed batch, [R, K, ...] by example or [R, S, ...] by token.

        An ensemble averages them. Pre-training: see `BertForPreTraining`.
        """
        raise NotImplementedError

    def loss(
        self, params: Params, batch: Batch, totals: Sums, rows_Bx2: jax.Array | None
    ) -> tuple[jax.Array, Sums]:
        """The batch's share of the loss, and metric sums.

        Args:
          params: unboxed parameters.
          batch: features [B, ...].
          totals: divisors of the whole batch, of which this may be a part.
          rows_Bx2: dropout keys (`model.dropout.dropout_rows`), or None: no dropout.
        """
        raise NotImplementedError

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Metrics by name, from sums over batches."""
        raise NotImplementedError

    def of_states(
        self, params: Params, x_BxSxH: jax.Array, pooled_BxH: jax.Array | None
    ) -> dict[str, jax.Array]:
        """The head's outputs, float32, from an encoder's outputs, for an export."""
        return {}


def apply_layer(module: nn.Module, params: Params, layer: str, x: jax.Array) -> jax.Array:
    """Outputs float32 of the layer `module.<layer>` (dots between names) of a model."""
    def compute(module: Any) -> jax.Array:
        for name in layer.split('.'):
            module = getattr(module, name)
        return module(x).astype(jnp.float32)

    return nn.apply(compute, module)({'params': params})


def any_shape(config: ModelConfig) -> ModelConfig:
    """The config for initialisation, whose input may have any shape: no attention kernel."""
    return dataclasses.replace(config, attention='xla')


def cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Negative log-likelihood and whether the label has the highest logit.

    Args:
      logits: [..., V] float32.
      labels: [...] int32.

    Returns:
      (loss [...] float32, correct [...] float32 of 0 and 1).
    """
    log_z = jax.nn.logsumexp(logits, axis=-1)
    label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    # Comparison with the maximum, already computed, instead of an argmax over the vocabulary.
    correct = (label_logit >= jnp.max(logits, axis=-1)).astype(jnp.float32)
    return log_z - label_logit, correct


ELSEWHERE = -1e30  # score of entries outside a softmax
_TOKENS = ('input_ids', 'sequence_ids', 'segment_ids', 'position_ids', 'cls_positions')


@dataclasses.dataclass(frozen=True)
class LabelledHead(Head):
    """A head on packed rows of labelled examples: a flax module, weighted means over examples.

    A new head defines `module`, `outputs` and `losses`.

    Attributes:
      num_outputs: of the last layer, if not fixed.
      weights: name of the feature that weights its losses: 1 for examples or tokens that count, 0
        for empty slots.
      sequences: of an example, if the module's shapes depend on it.
    """

    weights: ClassVar[str] = 'unit_weights'
    sequences: ClassVar[int] = 1
    shown: ClassVar[Mapping[str, str]] = {'accuracy': 'acc'}

    num_outputs: int

    @classmethod
    def of_model(cls, config: ModelConfig, num_labels: int, inference: Mapping[str, Any]) -> Head:
        return cls(config, num_labels)

    @property
    def module(self) -> nn.Module:
        """Called with (batch, dropout keys)."""
        raise NotImplementedError

    def losses(
        self, outputs: Mapping[str, Any], batch: Batch
    ) -> tuple[jax.Array, jax.Array | None]:
        """(Loss of each example, whether it is right or None), both shaped as the weights.

        For a head that compares, these are the examples of the whole global batch: [N] instead of
        [R, K], and outputs [N, ...]; see `among_examples`.
        """
        raise NotImplementedError

    def init(self, rng: jax.Array) -> Params:
        ones_1x8 = jnp.ones((1, 8), jnp.int32)
        module = dataclasses.replace(self, config=any_shape(self.config)).module
        return module.init(rng, {
            'input_ids': ones_1x8, 'sequence_ids': ones_1x8, 'segment_ids': ones_1x8,
            'position_ids': ones_1x8, 'cls_positions': jnp.zeros((1, self.sequences), jnp.int32),
        })['params']

    def token_flops(self, row_length: int) -> float:
        """FLOPs of training on one token of a row, without dense heads, which are small."""
        c = self.config
        bilstm = bilstm_flops(c.hidden_size, c.hidden_size // 2) if c.bilstm else 0.0
        return 3.0 * (token_flops(c, row_length) + bilstm)

    def apply(self, params: Params, batch: Batch, rows_Bx2: jax.Array | None) -> Any:
        """The module's result for a batch."""
        return self.module.apply({'params': params}, batch, rows_Bx2)

    def totals(self, batch: Batch) -> Sums:
        return {'units': jnp.maximum(jnp.sum(batch[self.weights]), 1.0)}

    def outputs(
        self, params: Params, batch: Batch, rows_Bx2: jax.Array | None = None
    ) -> dict[str, Any]:
        return {'logits': self.apply(params, batch, rows_Bx2)}

    def loss(
        self, params: Params, batch: Batch, totals: Sums, rows_Bx2: jax.Array | None
    ) -> tuple[jax.Array, Sums]:
        return self.loss_of(self.outputs(params, batch, rows_Bx2), batch, totals)

    def loss_of(
        self, outputs: Mapping[str, Any], batch: Batch, totals: Sums
    ) -> tuple[jax.Array, Sums]:
        """The loss of `outputs`; see `loss`."""
        tokens = jnp.sum((batch['sequence_ids'] > 0).astype(jnp.float32))
        devices = 1
        if self.compares:
            batch = {name: x for name, x in batch.items() if name not in _TOKENS}
            (outputs, batch), devices = _global_examples((outputs, batch))
        weights = batch[self.weights]
        losses, correct = self.losses(outputs, batch)
        sums = {'units': jnp.sum(weights), 'loss_sum': jnp.sum(losses * weights)}
        if correct is not None:
            sums['correct'] = jnp.sum(correct * weights)
        if devices > 1:  # each has the sums of the whole batch, and they will be added up
            sums = {name: x / devices for name, x in sums.items()}
        return sums['loss_sum'] / totals['units'], sums | {'tokens': tokens}

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {'accuracy': sums['correct'] / max(sums['units'], 1.0)}


def _global_examples(tree: Any) -> tuple[Any, int]:
    """Gathers arrays [R, K, ...] of a device to [N, ...] of the global batch; and device count."""
    axes = tuple(
        axis for axis in BATCH_AXES if axis in jax.sharding.get_abstract_mesh().manual_axes)

    def whole(x: jax.Array) -> jax.Array:
        x = x.reshape(-1, *x.shape[2:])
        return jax.lax.all_gather(x, axes, tiled=True) if axes else x

    return jax.tree.map(whole, tree), jax.lax.axis_size(axes) if axes else 1


def among_examples(scores_NxM: jax.Array, batch: Batch) -> jax.Array:
    """Scores of N examples against all M of the batch, with empty slots masked out.

    For `losses` of a head that compares: `cross_entropy(among_examples(scores, batch), arange(N))`.
    """
    return jnp.where(batch['unit_weights'] > 0, scores_NxM, ELSEWHERE)


def encode(
    bert: Bert, bilstm: BiLstm | None, batch: Batch, rows_Bx2: jax.Array | None
) -> jax.Array:
    """Hidden states [B, S, H] of all tokens."""
    x_BxSxH = bert(
        batch['input_ids'], batch['sequence_ids'], batch['segment_ids'], rows_Bx2,
        batch.get('position_ids'), batch.get('cls_positions'),
    )['sequence_output']
    return x_BxSxH if bilstm is None else bilstm(x_BxSxH, batch['sequence_ids'])


def ablation_bilstm(config: ModelConfig) -> BiLstm | None:
    """The BiLSTM between encoder and head of a model with `bilstm` (section 5.1)."""
    return BiLstm(config, config.hidden_size // 2) if config.bilstm else None
