"""The base class of all heads: declaration, parameters in files, training on packed rows.

    B, R: rows, S: row length, H: hidden_size, K: sequences or examples a row, L: labels. Dims of
    parameters in files: V: vocabulary, P: positions, T: segment types, I: intermediate_size,
    N: heads, D: head_dim, U: half of hidden_size; 2, 3 and 4 are themselves
"""

import dataclasses
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.config.bert_config import Format
from bert_jax.model.bilstm import BiLstm
from bert_jax.model.encoder import Bert
from bert_jax.model.flops import bilstm_flops, token_flops
from bert_jax.model.layers import ModelConfig
from bert_jax.sharding import BATCH_AXES

Params = Any
Batch = Mapping[str, jax.Array]
Keys = jax.Array | None  # dropout keys [B, 2] (`model.dropout.dropout_rows`); None: no dropout
Outputs = Mapping[str, Any]
Sums = Mapping[str, jax.Array]  # metric sums and counts; they add up over batches and hosts
Losses = tuple[jax.Array, jax.Array | None]  # losses of examples; which are right


class Tensor(NamedTuple):
    """A parameter: its name here and in the two file formats, and its dims.

    Kernels are [in, out] here and in TF1, [out, in] in Hugging Face files and in TF1's
    `output_weights`. In files, N and D are one dim, and `{part}` stands for query, key and value,
    which are fused here.

    Attributes:
      name: in this package.
      tf1, huggingface: names in files of these formats.
      dims: letters of the array's dims here (see above); a comma separates in dims and out dims.
    """

    name: str
    tf1: str
    huggingface: str
    dims: str

    @classmethod
    def of(cls, name: str, dims: str, **exceptions: str) -> Self:
        """A parameter whose names in files follow from ours by rules, except for `exceptions`."""
        folder, _, leaf = name.replace('/qkv/', '/{part}/').rpartition('/')
        tf1 = {'scale': 'gamma', 'bias': 'beta'}[leaf] if folder.endswith('LayerNorm') else leaf
        torch = {'kernel': 'weight', 'scale': 'weight', 'bias': 'bias'}.get(leaf, f'{leaf}.weight')
        dotted = folder.replace('layer_', 'layer.').replace('/', '.')
        return cls(name, f'{folder}/{tf1}', f'{dotted}.{torch}', dims)._replace(**exceptions)

    def file_names(self, form: Format) -> tuple[str, ...]:
        """The names in files of this format: one, or three where query, key and value are apart."""
        name = self.name if form == 'bert_jax' else getattr(self, form)
        parts = ('query', 'key', 'value') if '{part}' in name else ('',)
        return tuple(name.replace('{part}', part) for part in parts)

    def shape(self, form: Format, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Shape of each of `file_names`; `sizes` of dims by letter (`weights.formats.sizes_of`)."""
        if form == 'bert_jax':
            return tuple(sizes[dim] for dim in self.dims if dim != ',')
        groups = self.dims.replace('3', '').split(',')
        shape = tuple(math.prod(sizes[dim] for dim in group) for group in groups)
        return shape[::-1] if self.is_transposed(form) else shape

    def from_files(
        self, form: Format, arrays: Sequence[np.ndarray], sizes: Mapping[str, int]
    ) -> np.ndarray:
        """Converts the arrays of `file_names` to the array here, float32 and contiguous."""
        shape = [sizes[dim] for dim in self.dims if dim not in '3,']
        arrays = [(x.T if self.is_transposed(form) else x).reshape(shape) for x in arrays]
        if len(arrays) == 1:
            return np.ascontiguousarray(arrays[0], np.float32)
        return np.stack(arrays, axis=self.dims.replace(',', '').index('3'), dtype=np.float32)

    def to_files(self, form: Format, array: np.ndarray) -> list[np.ndarray]:
        """The inverse of `from_files`; the arrays are contiguous."""
        dims, (ins, *outs) = self.dims.replace(',', ''), self.dims.replace('3', '').split(',')
        arrays = np.moveaxis(array, dims.index('3'), 0) if '3' in dims else [array]
        arrays = [x.reshape(math.prod(x.shape[: len(ins)]), -1) if outs else x.reshape(-1)
                  for x in arrays]
        return [np.ascontiguousarray(x.T if self.is_transposed(form) else x) for x in arrays]

    def is_transposed(self, form: Format) -> bool:
        return (self.name.endswith('/kernel') if form == 'huggingface'
                else self.tf1.endswith('output_weights'))


class Part(NamedTuple):
    """Parameters that exist together, or not at all: those whose names begin with `prefix`."""

    prefix: str
    tensors: tuple[Tensor, ...]


POOLER = Part('bert/pooler/', (
    Tensor.of('bert/pooler/dense/kernel', 'H,H'), Tensor.of('bert/pooler/dense/bias', 'H')))


@dataclasses.dataclass(frozen=True)
class Head:
    """A model with a head: parameter names, module, loss and scores.

    This class itself is the model without a head. It implements what heads on packed rows of
    labelled examples share: weighted means over examples. A new head defines `module` and `losses`,
    and `named` if its outputs are not one array of logits. Losses and metrics are sums with counts,
    divided once: `totals` gives the divisors of the whole global batch before any of it is
    computed, so that a step gives the same result in parts and on many devices.

    Attributes:
      name: in `config.json` and in messages.
      classes: Hugging Face's classes with this head, each with its parts besides embeddings and
        layers; a model is written as the first class whose parts all exist. Empty: no other format
        has these parameters, so only run directories store them.
      labelled: whether its outputs are named by labels.
      problem_type: Hugging Face's setting, for a class that several heads share.
      compares: whether the loss of an example depends on the other examples of its batch.
      shown: metrics of `score` that log lines show, with their short names there.
      sequences: number of sequences in an example, if the module's shapes depend on it.
      weights: the feature that weights the losses: 1 for examples or tokens that count, 0 for
        empty slots.
      config: of the encoder.
      num_outputs: of the last layer, where that is not fixed.
    """

    name: ClassVar[str] = ''
    classes: ClassVar[Mapping[str, tuple[Part, ...]]] = {'BertModel': (POOLER,)}
    labelled: ClassVar[bool] = False
    problem_type: ClassVar[str] = ''
    compares: ClassVar[bool] = False
    shown: ClassVar[Mapping[str, str]] = {'accuracy': 'acc'}
    sequences: ClassVar[int] = 1
    weights: ClassVar[str] = 'unit_weights'

    config: ModelConfig
    num_outputs: int = 0

    @classmethod
    def title(cls) -> str:
        """The head's name in messages and model cards."""
        name = cls.name.replace('_', '-').replace('pretraining', 'pre-training')
        return f'a {name} head' if name else 'no head'

    @classmethod
    def parts(cls) -> set[Part]:
        """The parts that any of `classes` has, without the pooler."""
        return {part for parts in cls.classes.values() for part in parts} - {POOLER}

    @classmethod
    def needs_pooler(cls) -> bool:
        """Whether there is a head and all of its `classes` have the pooler."""
        return bool(cls.parts()) and all(POOLER in parts for parts in cls.classes.values())

    @classmethod
    def of_model(cls, config: ModelConfig, num_labels: int, inference: Mapping[str, Any]) -> Self:
        """The head of a trained model, for inference: each sequence is an example.

        Args:
          config: of the encoder.
          num_labels: outputs of its last layer.
          inference: how the run made its predictions (`Weights.inference`).
        """
        return cls(config, num_labels)

    @property
    def module(self) -> nn.Module:
        """The flax module, which is called with (batch, dropout keys)."""
        raise NotImplementedError

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters, as `layers.Parameter`s."""
        tokens = 'input_ids', 'sequence_ids', 'segment_ids', 'position_ids'
        places_1xK = jnp.zeros((1, self.sequences), jnp.int32)
        any_shape = dataclasses.replace(self.config, attention='xla')  # no attention kernel
        return dataclasses.replace(self, config=any_shape).module.init(
            rng, {name: jnp.ones((1, 8), jnp.int32) for name in tokens}
            | {'cls_positions': places_1xK, 'masked_lm_positions': places_1xK})['params']

    def losses(self, outputs: Outputs, batch: Batch) -> Losses:
        """(Loss of each example; whether it is right, or None), both with the weights' shape.

        A head that compares receives the examples of the whole global batch: [N] instead of [R, K],
        and outputs [N, ...]; see `among_examples`.
        """
        raise NotImplementedError

    def named(self, logits: jax.Array) -> dict[str, jax.Array]:
        """The outputs by name, from the last layer's logits."""
        return {'logits': logits}

    def outputs(self, params: Params, batch: Batch, rows_Bx2: Keys = None) -> dict[str, Any]:
        """Logits of a packed batch by name, [R, K, ...] for examples or [R, S, ...] for tokens.

        An ensemble averages them. For pre-training see `BertForPreTraining`.
        """
        logits: Any = self.module.apply({'params': params}, batch, rows_Bx2)
        return self.named(logits)

    def totals(self, batch: Batch) -> Sums:
        """Divisors of the losses of this batch."""
        return {'units': jnp.maximum(jnp.sum(batch[self.weights]), 1.0)}

    def loss(
        self, params: Params, batch: Batch, totals: Sums, rows_Bx2: Keys
    ) -> tuple[jax.Array, Sums]:
        """The batch's share of the loss, a scalar float32, and metric sums.

        Args:
          params: unboxed parameters.
          batch: features [B, ...], perhaps only a part of the global batch.
          totals: divisors of the global batch, from `totals`.
          rows_Bx2: dropout keys.
        """
        return self.loss_of(self.outputs(params, batch, rows_Bx2), batch, totals)

    def loss_of(self, outputs: Outputs, batch: Batch, totals: Sums) -> tuple[jax.Array, Sums]:
        """The loss of `outputs`; see `loss`."""
        tokens = jnp.sum((batch['sequence_ids'] > 0).astype(jnp.float32))
        weights, devices = batch[self.weights], 1
        if self.compares:
            batch = {name: x for name, x in batch.items() if x.shape[:2] == weights.shape}
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
        """Metrics by name, from sums over batches."""
        return {'accuracy': sums['correct'] / max(sums['units'], 1.0)}

    def token_flops(self, row_length: int) -> float:
        """FLOPs of training on one token of a row, without dense heads, which are small."""
        c = self.config
        bilstm = bilstm_flops(c.hidden_size, c.hidden_size // 2) if c.bilstm else 0.0
        return 3.0 * (token_flops(c, row_length) + bilstm)

    def outputs_from_hidden(
        self, params: Params, x_BxSxH: jax.Array, pooled_BxH: jax.Array | None
    ) -> dict[str, jax.Array]:
        """The head's outputs by name, float32, from an encoder's outputs; for exports."""
        outputs: dict[str, jax.Array] = {}
        for part in self.parts():
            x = pooled_BxH if self.needs_pooler() else x_BxSxH
            outputs |= self.named(self.apply_layer(params, part.prefix.strip('/'), x))
        return outputs

    def apply_layer(self, params: Params, layer: str, x: Any) -> jax.Array:
        """Float32 outputs of one of the module's dense layers, such as 'cls/squad', on `x`."""
        logits: Any = nn.apply(
            lambda module: operator.attrgetter(layer.replace('/', '.'))(module).logits(x),
            self.module)({'params': params})
        return logits


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


ELSEWHERE = -1e30  # score of entries that a softmax leaves out


def _global_examples(tree: Any) -> tuple[Any, int]:
    """Gathers a device's arrays [R, K, ...] to [N, ...] of the global batch; with device count."""
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


def inputs_of(
    batch: Batch, rows_Bx2: Keys
) -> tuple[jax.Array, jax.Array, jax.Array, Keys, jax.Array | None]:
    """The encoder's arguments; plain rows have no position ids."""
    return (batch['input_ids'], batch['sequence_ids'], batch['segment_ids'], rows_Bx2,
            batch.get('position_ids'))


def mean_vectors(x_RxSxH: jax.Array, batch: Batch) -> jax.Array:
    """Means [R, K, H] float32 over all tokens of each sequence, including [CLS] and [SEP]."""
    numbers_K = jnp.arange(1, batch['cls_positions'].shape[1] + 1)
    inside_RxKxS = batch['sequence_ids'][:, None, :] == numbers_K[:, None]
    sums_RxKxH = jnp.einsum(
        'RKS,RSH->RKH', inside_RxKxS.astype(jnp.float32), x_RxSxH.astype(jnp.float32),
        precision=jax.lax.Precision.HIGHEST)
    return sums_RxKxH / jnp.maximum(jnp.sum(inside_RxKxS, axis=2), 1)[..., None]


def encode(bert: Bert, bilstm: BiLstm | None, batch: Batch, rows_Bx2: Keys) -> jax.Array:
    """Hidden states [B, S, H] of all tokens, from the BiLSTM if there is one."""
    x_BxSxH = bert(*inputs_of(batch, rows_Bx2), batch.get('cls_positions'))['sequence_output']
    return x_BxSxH if bilstm is None else bilstm(x_BxSxH, batch['sequence_ids'])


def ablation_bilstm(config: ModelConfig) -> BiLstm | None:
    """The BiLSTM between encoder and head if the model has `bilstm` (section 5.1), or None."""
    return BiLstm(config, config.hidden_size // 2) if config.bilstm else None
