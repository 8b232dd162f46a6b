"""The BERT encoder: embeddings, Transformer layers, pooler.

Parameters have google-research/bert's names, except that `gamma`/`beta` are `scale`/`bias`, and
query, key and value are fused into `attention/self/qkv`.

    B: batch rows, S: sequence, P: wanted positions, K: sequences a row, H: hidden_size,
    E: columns of the embedding tables, I: intermediate_size, V: padded vocabulary, T: segment
    types, N: heads
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.kernels import dropout as drop
from bert_jax.model.attention import SelfAttention, gather_positions
from bert_jax.model.layers import (
    Dense,
    LayerNorm,
    ModelConfig,
    activation,
    parameter,
    read_by_adapter,
)
from bert_jax.model.relative import NUM_BUCKETS, relative_scores


@jax.custom_vjp
def look_up(table_VxE: jax.Array, ids: jax.Array) -> jax.Array:
    """The rows of a table with these ids [..., E], in float32.

    The gradient has the table's dtype, but is summed over equal ids in float32.
    """
    return jnp.take(table_VxE, ids, axis=0).astype(jnp.float32)


def _look_up_forward(
    table_VxE: jax.Array, ids: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    empty_Vx0 = table_VxE[:, :0]  # tells the number of rows and the dtype
    return look_up(table_VxE, ids), (ids, empty_Vx0)


def _look_up_backward(
    residuals: tuple[jax.Array, jax.Array], d_rows: jax.Array
) -> tuple[jax.Array, None]:
    ids, empty_Vx0 = residuals
    zeros_VxE = jnp.zeros((len(empty_Vx0), d_rows.shape[-1]), jnp.float32)
    return zeros_VxE.at[ids].add(d_rows).astype(empty_Vx0.dtype), None


look_up.defvjp(_look_up_forward, _look_up_backward)


class Embeddings(nn.Module):
    """Sum [B, S, E] of word, position and segment embeddings -> LayerNorm -> dropout.

    With rotary positions there are no position embeddings, and without segment types none of those.
    The LayerNorm is there with `embedding_norm`.
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        # Padding rows are and stay zero: they are never looked up, and their logits are masked.
        self.word_embeddings = self._table(
            'word_embeddings', config.vocab_size, axis='vocab',
            num_padding=config.padded_vocab_size - config.vocab_size)
        if config.positions == 'table':
            self.position_embeddings = self._table(
                'position_embeddings', config.max_position_embeddings)
        if config.type_vocab_size:
            self.token_type_embeddings = self._table(
                'token_type_embeddings', config.type_vocab_size)
        if config.embedding_norm:
            self.layer_norm = LayerNorm(config, name='LayerNorm')

    def _table(
        self, name: str, num_rows: int, *, axis: str | None = None, num_padding: int = 0
    ) -> Any:
        """A table of embeddings, with rows of zeros behind its own; `axis` names that of rows."""
        def init(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
            return jnp.pad(self.config.kernel_init(key, shape), ((0, num_padding), (0, 0)))

        return self.param(
            name, parameter(init, axis, 'embed'), (num_rows, self.config.num_embedding_columns))

    def __call__(
        self, input_ids_BxS: jax.Array, segment_ids_BxS: jax.Array,
        dropout_keys_Bx2: jax.Array | None, position_ids_BxS: jax.Array | None = None,
    ) -> jax.Array:
        words_BxSxE = look_up(self.word_embeddings, input_ids_BxS)
        others = []
        if self.config.type_vocab_size:
            others.append(self._of_types(segment_ids_BxS))
        if self.config.positions == 'table':
            others.append(self._of_positions(input_ids_BxS.shape[1], position_ids_BxS))
        x_BxSxE = sum(others, start=words_BxSxE)
        if self.config.embedding_norm:
            x_BxSxE = self.layer_norm(x_BxSxE)
        else:
            x_BxSxE = x_BxSxE.astype(self.config.dtype)
        x_BxSxE = drop.dropout(
            x_BxSxE, self.config.hidden_dropout, dropout_keys_Bx2, drop.EMBEDDINGS)
        return self.config.layout(x_BxSxE, 'batch', None, None)

    def _of_types(self, segment_ids_BxS: jax.Array) -> jax.Array:
        """The segment embeddings [B, S, E]; if there is one type, [E] for all tokens."""
        num_types = self.config.type_vocab_size
        if num_types == 1:
            return self.token_type_embeddings[0]
        # A product with one-hot rows: there are few types, and its gradient needs no scatter.
        types_BxSxT = jax.nn.one_hot(segment_ids_BxS, num_types, dtype=jnp.float32)
        return jnp.einsum('BST,TE->BSE', types_BxSxT, self.token_type_embeddings,
                          precision=jax.lax.Precision.HIGHEST)

    def _of_positions(self, length: int, position_ids_BxS: jax.Array | None) -> jax.Array:
        """The position embeddings [B, S, E]; without ids, those [S, E] of a row's tokens."""
        first = self.config.first_position
        if position_ids_BxS is None:
            return self.position_embeddings[first : first + length]
        if first:
            position_ids_BxS = position_ids_BxS + first
        return look_up(self.position_embeddings, position_ids_BxS)


class Residual(nn.Module):
    """Dense to `hidden_size` -> dropout at `site` -> residual connection -> LayerNorm.

    With `pre_norm`, the LayerNorm is not here but in front of the block.

    Attributes:
      module: of the dense layer, as for `Dense`.
      adapter_site: of dropout before its adapter.
    """

    config: ModelConfig
    in_dims: tuple[int, ...]
    in_axes: tuple[str | None, ...]
    site: int
    module: str
    adapter_site: int

    @nn.compact
    def __call__(
        self, y: jax.Array, x_BxSxH: jax.Array, dropout_keys_Bx2: jax.Array | None, layer: int,
        wanted_BxP: jax.Array | None,
    ) -> jax.Array:
        config = self.config
        dense = Dense(
            config, self.in_dims, (config.hidden_size,), self.in_axes, ('embed',),
            biased=config.has_layer_biases, ends_branch=True, module=self.module, name='dense')
        read = read_by_adapter(config, y, dropout_keys_Bx2, self.adapter_site, layer, wanted_BxP)
        y = config.layout(dense(y, read), 'batch', None, None)
        y = drop.dropout(y, config.hidden_dropout, dropout_keys_Bx2, self.site, layer, wanted_BxP)
        if config.pre_norm:
            return x_BxSxH + y
        return LayerNorm(config, name='LayerNorm')(x_BxSxH + y)


class Attention(nn.Module):
    """Self-attention and its output block; with `pre_norm`, after a LayerNorm.

    Attributes:
      is_first: whether its input is that of the embeddings' LayerNorm, if there is one, so that
        there is no other.
    """

    config: ModelConfig
    is_first: bool = False

    @nn.compact
    def __call__(
        self, x_BxSxH: jax.Array, segments_BxS: jax.Array,
        dropout_keys_Bx2: jax.Array | None, layer: int, wanted_BxP: jax.Array | None = None,
        relative_NxSxS: jax.Array | None = None,
    ) -> jax.Array:
        config = self.config
        y_BxSxH = x_BxSxH
        if config.pre_norm and not (self.is_first and config.embedding_norm):
            y_BxSxH = LayerNorm(config, name='LayerNorm')(x_BxSxH)
        attention = SelfAttention(config, name='self')
        y_BxPxH = None
        if wanted_BxP is not None:
            is_same = y_BxSxH is x_BxSxH
            x_BxSxH = gather_positions(x_BxSxH, wanted_BxP)
            y_BxPxH = x_BxSxH if is_same else gather_positions(y_BxSxH, wanted_BxP)
        context = attention(
            y_BxSxH, segments_BxS, dropout_keys_Bx2, layer, wanted_BxP, relative_NxSxS, y_BxPxH)
        output = Residual(
            config, (config.num_heads, config.head_dim), ('heads', None), drop.ATTENTION_OUTPUT,
            'attention/output/dense', drop.ATTENTION_OUTPUT_ADAPTER, name='output')
        return output(context, x_BxSxH, dropout_keys_Bx2, layer, wanted_BxP)


class Intermediate(nn.Module):
    """Dense to `intermediate_size`, then `hidden_act`; with `pre_norm`, after a LayerNorm.

    If the layer is `gated`, there are two such products of its input, and `hidden_act` of the first
    is multiplied by the second.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x_BxSxH: jax.Array, dropout_keys_Bx2: jax.Array | None, layer: int,
        wanted_BxP: jax.Array | None,
    ) -> jax.Array:
        config = self.config
        if config.pre_norm:
            x_BxSxH = LayerNorm(config, name='LayerNorm')(x_BxSxH)
        out_dims: tuple[int, ...] = (config.intermediate_size,)
        out_axes: tuple[str | None, ...] = ('mlp',)
        if config.gated:
            out_dims = (2, *out_dims)
            out_axes = (None, *out_axes)
        dense = Dense(
            config, (config.hidden_size,), out_dims, ('embed',), out_axes,
            num_separate=len(out_dims) - 1, biased=config.has_intermediate_biases,
            module='intermediate/dense', name='dense')
        read = read_by_adapter(
            config, x_BxSxH, dropout_keys_Bx2, drop.INTERMEDIATE_ADAPTER, layer, wanted_BxP)
        y = dense(x_BxSxH, read)
        if config.gated:
            y_BxSxI = self._act(y[:, :, 0]) * y[:, :, 1]
        else:
            y_BxSxI = self._act(y)
        return config.layout(y_BxSxI, 'batch', None, 'mlp')

    def _act(self, y_BxSxI: jax.Array) -> jax.Array:
        return activation(y_BxSxI, self.config.hidden_act, self.config.layout.kept_of_gelu)


class Layer(nn.Module):
    """One Transformer layer; with `wanted_BxP` its output is [B, P, H], at these positions only.

    Attributes:
      config: the options of this layer (`BertConfig.of_layer`).
      is_first: whether it is layer 0.
    """

    config: ModelConfig
    is_first: bool = False

    @nn.compact
    def __call__(
        self, x_BxSxH: jax.Array, layer: int, segments_BxS: jax.Array,
        dropout_keys_Bx2: jax.Array | None, wanted_BxP: jax.Array | None = None,
        relative_NxSxS: jax.Array | None = None,
    ) -> jax.Array:
        config = self.config
        attention = Attention(config, self.is_first, name='attention')
        x_BxSxH = attention(
            x_BxSxH, segments_BxS, dropout_keys_Bx2, layer, wanted_BxP, relative_NxSxS)
        y_BxSxI = Intermediate(config, name='intermediate')(
            x_BxSxH, dropout_keys_Bx2, layer, wanted_BxP)
        output = Residual(
            config, (config.intermediate_size,), ('mlp',), drop.FFN_OUTPUT, 'output/dense',
            drop.FFN_OUTPUT_ADAPTER, name='output')
        return output(y_BxSxI, x_BxSxH, dropout_keys_Bx2, layer, wanted_BxP)


# What the backward pass finds stored, by `ModelConfig.remat`.
_REMAT_POLICIES = {
    'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    'full': jax.checkpoint_policies.nothing_saveable,
}


class Encoder(nn.Module):
    """All `num_layers` layers, rematerialised as `remat` says. Returns the output of each.

    With `shared_layers`, the first is called so many times.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x_BxSxH: jax.Array, segments_BxS: jax.Array, dropout_keys_Bx2: jax.Array | None,
        wanted_BxP: jax.Array | None = None, relative_NxSxS: jax.Array | None = None,
    ) -> tuple[jax.Array, ...]:
        layer_class: Any = Layer
        if self.config.remat != 'none':
            layer_class = nn.remat(Layer, policy=_REMAT_POLICIES[self.config.remat])
        last = self.config.num_layers - 1
        outputs = []
        for i in range(self.config.num_layers):
            # In the module's config, because `nn.remat` would trace call arguments.
            config = self.config.of_layer(i)
            if i < self.config.num_distinct_layers:
                layer = layer_class(config, is_first=i == 0, name=f'layer_{i}')
            wanted = wanted_BxP if i == last else None
            x_BxSxH = layer(x_BxSxH, i, segments_BxS, dropout_keys_Bx2, wanted, relative_NxSxS)
            outputs.append(x_BxSxH)
        return tuple(outputs)


def kept_probabilities(kept: Mapping[str, Any], config: ModelConfig) -> list[jax.Array]:
    """The attention probabilities [B, N, Q, K] of each layer.

    Args:
      kept: flax's collection `intermediates` of a model, which `SelfAttention` filled.
      config: of the model.
    """
    probabilities: list[jax.Array] = []
    for i in range(config.num_distinct_layers):
        probabilities += kept['encoder'][f'layer_{i}']['attention']['self']['probabilities']
    return probabilities


class Pooler(nn.Module):
    """Dropout, a dense layer, `pooler_act` and, with `pooler_norm`, a LayerNorm on [..., H].

    With `pooler=False`, the dropout alone. BERT's is tanh of a dense layer, without dropout, on the
    outputs at [CLS]; `pooling` says whether it reads these.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array, dropout_keys_Bx2: jax.Array | None = None) -> jax.Array:
        config = self.config
        hidden = config.hidden_size
        x = drop.dropout(x, config.pooler_dropout, dropout_keys_Bx2, drop.POOLER)
        if not config.pooler:
            return x
        dense = Dense(
            config, (hidden,), (hidden,), ('embed',), (None,), biased=config.biases, name='dense')
        y = dense(x)
        y = jnp.tanh(y) if config.pooler_act == 'tanh' else activation(y, config.pooler_act)
        if config.pooler_norm:
            y = LayerNorm(config, name='LayerNorm')(y)
        return y


def sequence_means(
    x_BxSxH: jax.Array, sequence_ids_BxS: jax.Array, num_sequences: int
) -> jax.Array:
    """Means [B, K, H] float32 over all tokens of the sequences 1 to K, [CLS] and [SEP] included."""
    numbers_K = jnp.arange(1, num_sequences + 1)
    inside_BxKxS = sequence_ids_BxS[:, None, :] == numbers_K[:, None]
    sums_BxKxH = jnp.einsum(
        'BKS,BSH->BKH', inside_BxKxS.astype(jnp.float32), x_BxSxH.astype(jnp.float32),
        precision=jax.lax.Precision.HIGHEST)
    return sums_BxKxH / jnp.maximum(jnp.sum(inside_BxKxS, axis=2), 1)[..., None]


class Bert(nn.Module):
    """The encoder with its pooler.

    A row is one sequence or several packed ones. `sequence_ids` number the sequences 1, 2, ... and
    are 0 on padding: in a row of one sequence they are BERT's `input_mask`. Each sequence attends
    to itself only. Packed rows also have `position_ids`, which start at 0 in each sequence.

    Args:
      pooled: whether the model has a pooler (Hugging Face's token and span models have none).

    Returns a dict: `sequence_output` [B, S, H], `pooled_output` [B, H] (of the first token; with
    `pooling='mean'` of the mean, with 'late' the mean of those of all tokens; None without pooler),
    `embedding_output` [B, S, H], which the first layer reads, and `layers`, a tuple of each layer's
    [B, S, H]; with `pre_norm`, the last is that of the LayerNorm behind the layers.
    """

    config: ModelConfig
    pooled: bool = True

    def setup(self) -> None:
        config = self.config
        self.embeddings = Embeddings(config)
        if config.num_embedding_columns != config.hidden_size:
            self.embeddings_project = Dense(
                config, (config.num_embedding_columns,), (config.hidden_size,), ('embed',), (None,),
                biased=config.biases)
        self.encoder = Encoder(config)
        if config.relative_positions:
            # Each is added to scores, and like other biases does not decay.
            init = parameter(config.kernel_init, None, 'heads', decays=False)
            self.relative_positions = self.param(
                'relative_positions', init, (NUM_BUCKETS, config.num_heads))
        if config.pre_norm:
            self.layer_norm = LayerNorm(config, name='LayerNorm')
        if self.pooled:
            self.pooler = Pooler(config)

    def __call__(
        self, input_ids_BxS: jax.Array, sequence_ids_BxS: jax.Array, segment_ids_BxS: jax.Array,
        dropout_keys_Bx2: jax.Array | None = None, position_ids_BxS: jax.Array | None = None,
        cls_positions_BxK: jax.Array | None = None, wanted_BxP: jax.Array | None = None,
    ) -> dict[str, Any]:
        """See the class.

        Args:
          cls_positions_BxK: position of each packed sequence's [CLS]; `pooled_output` is then
            [B, K, H].
          wanted_BxP: the positions at which the last layer's output is needed; None: all.
            `sequence_output` is then [B, P, H], with the same values and dropout, and
            `cls_positions` index into P. At other positions the last layer only projects to keys
            and values, which is a sixth of its work. A pooler that reads means needs all positions.
        """
        embedded = self.embeddings(
            input_ids_BxS, segment_ids_BxS, dropout_keys_Bx2, position_ids_BxS)
        if self.config.num_embedding_columns != self.config.hidden_size:
            embedded = self.embeddings_project(embedded)
        relative_NxSxS = None
        if self.config.relative_positions:
            relative_NxSxS = relative_scores(self.relative_positions, input_ids_BxS.shape[1])
        layers = self.encoder(
            embedded, sequence_ids_BxS, dropout_keys_Bx2, wanted_BxP, relative_NxSxS)
        if self.config.pre_norm:
            layers = (*layers[:-1], self.layer_norm(layers[-1]))
        x_BxSxH = layers[-1]
        pooled = None
        if self.pooled:
            if self.config.pooling != 'cls':
                assert wanted_BxP is None, 'means are over all positions'
            if self.config.pooling == 'mean':
                read = self._means(x_BxSxH, sequence_ids_BxS, cls_positions_BxK)
            elif self.config.pooling == 'late':
                read = x_BxSxH
            elif cls_positions_BxK is not None:
                read = gather_positions(x_BxSxH, cls_positions_BxK)
            else:
                read = x_BxSxH[:, 0]
            pooled = self.pooler(read, dropout_keys_Bx2)
            if self.config.pooling == 'late':
                pooled = self._means(pooled, sequence_ids_BxS, cls_positions_BxK)
        return {
            'sequence_output': x_BxSxH,
            'pooled_output': pooled,
            'embedding_output': embedded,
            'layers': layers,
        }

    def _means(
        self, x_BxSxH: jax.Array, sequence_ids_BxS: jax.Array, cls_positions_BxK: jax.Array | None
    ) -> jax.Array:
        """The means of packed sequences [B, K, H], or of a row's one sequence [B, H]."""
        if cls_positions_BxK is None:
            return sequence_means(x_BxSxH, sequence_ids_BxS, 1)[:, 0]
        return sequence_means(x_BxSxH, sequence_ids_BxS, cls_positions_BxK.shape[1])
