"""The base class of all heads: declaration and training on packed rows.

    B, R: rows, S: row length, H: hidden_size, K: sequences or examples a row, L: labels,
    N: examples of the global batch
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.heads.tensors import Part
from bert_jax.model.bilstm import BiLstm
from bert_jax.model.encoder import Bert, Pooler, sequence_means
from bert_jax.model.flops import bilstm_flops, token_flops
from bert_jax.model.layers import ModelConfig
from bert_jax.model.trainable import Batch, Keys, Outputs, Params, Sums
from bert_jax.runtime.errors import tell_once
from bert_jax.sharding import BATCH_AXES

Losses = tuple[jax.Array, jax.Array | None]  # losses of examples; which are right


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
      parts: of the head, besides embeddings, layers and pooler. Of pre-training, some may lack.
      needs_pooler: whether it reads the pooler's output.
      stays_in_run: whether its parameters are in no part, so that only run directories store them.
      labelled: whether its outputs are named by labels.
      problem_type: Hugging Face's setting, for a class that several heads share.
      loss_spans_batch: whether the loss of an example depends on the other examples of its batch.
      shown: metrics of `score` that log lines show, with their short names there.
      metric: of `score`, the one that a pre-training with this head is judged by.
      left_to_right: whether it has a loss for phases that read rows left to right.
      sequences: number of sequences in an example, if the module's shapes depend on it.
      weights: the feature that weights the losses: 1 for examples or tokens that count, 0 for
        empty slots.
      config: of the encoder.
      num_outputs: of the last layer, where that is not fixed.
    """

    name: ClassVar[str] = ''
    parts: ClassVar[tuple[Part, ...]] = ()
    needs_pooler: ClassVar[bool] = False
    stays_in_run: ClassVar[bool] = False
    labelled: ClassVar[bool] = False
    problem_type: ClassVar[str] = ''
    loss_spans_batch: ClassVar[bool] = False
    shown: ClassVar[Mapping[str, str]] = {'accuracy': 'acc'}
    metric: ClassVar[str] = 'accuracy'
    left_to_right: ClassVar[bool] = False
    sequences: ClassVar[int] = 1
    weights: ClassVar[str] = 'unit_weights'

    config: ModelConfig
    num_outputs: int = 0

    def __init_subclass__(cls) -> None:
        """Takes `loss_spans_batch` under its old name too, from a head of a config file."""
        super().__init_subclass__()
        old = getattr(cls, 'compares', None)
        if old is not None and 'loss_spans_batch' not in vars(cls):
            tell_once(f'note: the head {cls.__name__} sets compares, which is loss_spans_batch now')
            cls.loss_spans_batch = old

    @classmethod
    def title(cls) -> str:
        """The head's name in messages and model cards."""
        if not cls.name:
            return 'no head'
        name = cls.name.replace('_', '-').replace('pretraining', 'pre-training')
        return f'a {name} head'

    @classmethod
    def of_model(cls, config: ModelConfig, num_labels: int, inference: Mapping[str, Any]) -> Self:
        """The head of a trained model, for inference: each sequence is an example.

        Args:
          config: of the encoder.
          num_labels: outputs of its last layer.
          inference: how the run made its predictions (`Weights.inference`).
        """
        return cls(config, num_labels)

    @classmethod
    def of_pretraining(cls, config: ModelConfig, *, next_sentence: bool) -> Self:
        """The head that a pre-training trains on an encoder.

        Args:
          config: of the encoder.
          next_sentence: `data.next_sentence`: whether rows are pairs, and labelled as such.
        """
        return cls(config)

    @property
    def module(self) -> nn.Module:
        """The flax module, which is called with (batch, dropout keys)."""
        raise NotImplementedError

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters, as `layers.Parameter`s."""
        tokens = ('input_ids', 'sequence_ids', 'segment_ids', 'position_ids')
        batch = {name: jnp.ones((1, 8), jnp.int32) for name in tokens}
        positions_1xK = jnp.zeros((1, self.sequences), jnp.int32)
        batch['cls_positions'] = positions_1xK
        batch['masked_lm_positions'] = positions_1xK
        # The attention kernel does not take every shape of a batch.
        config = dataclasses.replace(self.config, attention='xla')
        return dataclasses.replace(self, config=config).module.init(rng, batch)['params']

    def losses(self, outputs: Outputs, batch: Batch) -> Losses:
        """(Loss of each example; whether it is right, or None), both with the weights' shape.

        With `loss_spans_batch`, `batch` has the examples of the whole global batch: [N] instead of
        [R, K], and outputs are [N, ...]; see `among_examples`.
        """
        raise NotImplementedError

    def named(self, logits: jax.Array) -> dict[str, jax.Array]:
        """The outputs by name, from the last layer's logits."""
        return {'logits': logits}

    def outputs(
        self, params: Params, batch: Batch, dropout_keys_Bx2: Keys = None
    ) -> dict[str, Any]:
        """Logits of a packed batch by name, [R, K, ...] for examples or [R, S, ...] for tokens.

        An ensemble averages them. For pre-training see `BertForPreTraining`.
        """
        logits: Any = self.module.apply({'params': params}, batch, dropout_keys_Bx2)
        return self.named(logits)

    def totals(self, batch: Batch) -> Sums:
        """Divisors of the losses of this batch."""
        return {'units': jnp.maximum(jnp.sum(batch[self.weights]), 1.0)}

    def loss(
        self, params: Params, batch: Batch, totals: Sums, dropout_keys_Bx2: Keys
    ) -> tuple[jax.Array, Sums]:
        """The batch's share of the loss, a scalar float32, and metric sums.

        Args:
          params: unboxed parameters.
          batch: features [B, ...], perhaps only a part of the global batch.
          totals: divisors of the global batch, from `totals`.
          dropout_keys_Bx2: dropout keys, from which a loss may also draw at random
            (`kernels.dropout.uniform` and `gumbel`); None in an evaluation, where
            `kernels.dropout.keys_from_content` gives keys.
        """
        return self.loss_of(self.outputs(params, batch, dropout_keys_Bx2), batch, totals)

    def loss_of(self, outputs: Outputs, batch: Batch, totals: Sums) -> tuple[jax.Array, Sums]:
        """The loss of `outputs`; see `loss`."""
        num_tokens = jnp.sum((batch['sequence_ids'] > 0).astype(jnp.float32))
        num_devices = 1
        if self.loss_spans_batch:
            shape = batch[self.weights].shape
            examples = {name: x for name, x in batch.items() if x.shape[:2] == shape}
            (outputs, batch), num_devices = _global_examples((outputs, examples))
        weights = batch[self.weights]
        losses, correct = self.losses(outputs, batch)
        sums = {'units': jnp.sum(weights), 'loss_sum': jnp.sum(losses * weights)}
        if correct is not None:
            sums['correct'] = jnp.sum(correct * weights)
        if num_devices > 1:  # each has the sums of the whole batch, and they will be added up
            sums = {name: x / num_devices for name, x in sums.items()}
        return sums['loss_sum'] / totals['units'], sums | {'tokens': num_tokens}

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Metrics by name, from sums over batches."""
        return {'accuracy': sums['correct'] / max(sums['units'], 1.0)}

    def loss_of_chance(self) -> float | None:
        """The loss of a model that gives all answers equal odds; None: it is not known."""
        return None

    def flops(
        self, max_seq_length: int, max_predictions_per_seq: int, pairs_a_row: int = 1
    ) -> float:
        """FLOPs of training on one row of pre-training, which may hold several pairs."""
        return max_seq_length * self.token_flops(max_seq_length)

    def token_flops(self, row_length: int) -> float:
        """FLOPs of training on one token of a row, without dense heads, which are small."""
        forward = token_flops(self.config, row_length)
        hidden = self.config.hidden_size
        if self.config.pools_tokens and not self.needs_pooler:
            forward += 2.0 * hidden**2
        if self.config.bilstm:
            forward += bilstm_flops(hidden, hidden // 2)
        return 3.0 * forward

    def outputs_from_hidden(
        self, params: Params, x_BxSxH: jax.Array, pooled_BxH: jax.Array | None
    ) -> dict[str, jax.Array]:
        """The head's outputs by name, float32, from an encoder's outputs; for exports."""
        read: Any = x_BxSxH
        if self.needs_pooler:
            read = pooled_BxH
        elif self.config.pools_tokens:
            read = Pooler(self.config).apply({'params': params['bert']['pooler']}, x_BxSxH)
        outputs: dict[str, jax.Array] = {}
        for part in self.parts:
            logits = self.apply_layer(params, part.prefix.strip('/'), read)
            outputs |= self.named(logits)
        return outputs

    def apply_layer(self, params: Params, layer: str, x: Any) -> jax.Array:
        """Float32 outputs of one of the module's dense layers, such as 'cls/squad', on `x`."""
        find_layer = operator.attrgetter(layer.replace('/', '.'))
        apply = nn.apply(lambda module: find_layer(module).logits(x), self.module)
        logits: Any = apply({'params': params})
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


def _manual_batch_axes() -> tuple[str, ...]:
    """The axes of the batch over which this code runs on each device by itself."""
    manual_axes = jax.sharding.get_abstract_mesh().manual_axes
    return tuple(axis for axis in BATCH_AXES if axis in manual_axes)


def _global_examples(tree: Any) -> tuple[Any, int]:
    """Gathers a device's arrays [R, K, ...] to [N, ...] of the global batch; with device count."""
    axes = _manual_batch_axes()

    def gather(x: jax.Array) -> jax.Array:
        x = x.reshape(-1, *x.shape[2:])
        if not axes:
            return x
        return jax.lax.all_gather(x, axes, tiled=True)

    num_devices = jax.lax.axis_size(axes) if axes else 1
    return jax.tree.map(gather, tree), num_devices


def of_own_examples(function: Callable[[Any], Any], arrays: Any) -> Any:
    """`function` of arrays [N, ...] of the global batch, of which a device computes its own share.

    For `losses` with `loss_spans_batch`, where all devices have the whole batch.

    Args:
      function: from a tree of arrays [Q, ...], of some of the examples, to one of arrays [Q, ...].
      arrays: a tree.
    """
    axes = _manual_batch_axes()
    if not axes:
        return function(arrays)
    num_devices = jax.lax.axis_size(axes)
    number = jax.lax.axis_index(axes)

    def share(x: jax.Array) -> jax.Array:
        num_own = len(x) // num_devices
        return jax.lax.dynamic_slice_in_dim(x, number * num_own, num_own)

    results = function(jax.tree.map(share, arrays))
    return jax.tree.map(lambda x: jax.lax.all_gather(x, axes, tiled=True), results)


def among_examples(scores_NxM: jax.Array, batch: Batch) -> jax.Array:
    """Scores of N examples against all M of the batch, with empty slots masked out.

    For `losses` with `loss_spans_batch`: `cross_entropy(among_examples(scores, batch), arange(N))`.
    """
    return jnp.where(batch['unit_weights'] > 0, scores_NxM, ELSEWHERE)


def inputs_of(
    batch: Batch, dropout_keys_Bx2: Keys
) -> tuple[jax.Array, jax.Array, jax.Array, Keys, jax.Array | None]:
    """The encoder's arguments; plain rows have no position ids."""
    return (batch['input_ids'], batch['sequence_ids'], batch['segment_ids'], dropout_keys_Bx2,
            batch.get('position_ids'))


def mean_vectors(x_RxSxH: jax.Array, batch: Batch) -> jax.Array:
    """Means [R, K, H] float32 over all tokens of each sequence, including [CLS] and [SEP]."""
    return sequence_means(x_RxSxH, batch['sequence_ids'], batch['cls_positions'].shape[1])


def encode(
    bert: Bert, bilstm: BiLstm | None, batch: Batch, dropout_keys_Bx2: Keys,
    encoded: Outputs | None = None,
) -> jax.Array:
    """Hidden states [B, S, H] of all tokens, from the BiLSTM if there is one.

    Args:
      bert, bilstm: of the model.
      batch: its features.
      dropout_keys_Bx2: dropout keys, or None.
      encoded: what `bert` returned for all positions of the batch; None: it is computed here.
    """
    outputs = encoded
    if outputs is None:
        outputs = bert(*inputs_of(batch, dropout_keys_Bx2), batch.get('cls_positions'))
    x_BxSxH: jax.Array = outputs['sequence_output']
    if bilstm is None:
        return x_BxSxH
    return bilstm(x_BxSxH, batch['sequence_ids'])


def ablation_bilstm(config: ModelConfig) -> BiLstm | None:
    """The BiLSTM between encoder and head if the model has `bilstm` (section 5.1), or None."""
    if not config.bilstm:
        return None
    return BiLstm(config, config.hidden_size // 2)
