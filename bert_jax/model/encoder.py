"""The BERT encoder: embeddings, Transformer layers (post-LayerNorm), pooler.

Parameters have google-research/bert's names, except that `gamma`/`beta` are `scale`/`bias`, and
query, key and value are fused into `attention/self/qkv`.

    B: batch rows, S: sequence, P: wanted positions, H: hidden_size, I: intermediate_size,
    V: padded vocabulary
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model import dropout as drop
from bert_jax.model.attention import SelfAttention, gather_positions
from bert_jax.model.layers import Dense, LayerNorm, ModelConfig, Names, gelu, parameter


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings -> LayerNorm -> dropout."""

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        # Padding rows are and stay zero: they are never looked up, and their logits are masked.
        self.word_embeddings = self._table(
            'word_embeddings', config.vocab_size, axis='vocab',
            num_padding=config.padded_vocab_size - config.vocab_size)
        self.position_embeddings = self._table(
            'position_embeddings', config.max_position_embeddings)
        self.token_type_embeddings = self._table('token_type_embeddings', config.type_vocab_size)
        self.layer_norm = LayerNorm(config, name='LayerNorm')

    def _table(
        self, name: str, num_rows: int, *, axis: str | None = None, num_padding: int = 0
    ) -> Any:
        """A table of embeddings, with rows of zeros behind its own; `axis` names that of rows."""
        def init(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
            return jnp.pad(self.config.kernel_init(key, shape), ((0, num_padding), (0, 0)))

        return self.param(
            name, parameter(init, axis, 'embed'), (num_rows, self.config.hidden_size))

    def __call__(
        self, input_ids_BxS: jax.Array, segment_ids_BxS: jax.Array, rows_Bx2: jax.Array | None,
        position_ids_BxS: jax.Array | None = None,
    ) -> jax.Array:
        words_BxSxH = jnp.take(self.word_embeddings, input_ids_BxS, axis=0)
        # A product with one-hot rows: there are few types, and its gradient needs no scatter.
        types_BxSxT = jax.nn.one_hot(
            segment_ids_BxS, self.config.type_vocab_size, dtype=jnp.float32)
        types_BxSxH = jnp.einsum('BST,TH->BSH', types_BxSxT, self.token_type_embeddings,
                                 precision=jax.lax.Precision.HIGHEST)
        if position_ids_BxS is None:
            positions = self.position_embeddings[: input_ids_BxS.shape[1]]
        else:
            positions = jnp.take(self.position_embeddings, position_ids_BxS, axis=0)
        x_BxSxH = self.layer_norm(words_BxSxH + types_BxSxH + positions)
        x_BxSxH = drop.dropout(
            x_BxSxH, self.config.hidden_dropout, rows_Bx2, drop.EMBEDDINGS)
        return self.config.layout(x_BxSxH, 'batch', None, None)


class Residual(nn.Module):
    """Dense to `hidden_size` -> dropout at `site` -> residual connection -> LayerNorm."""

    config: ModelConfig
    in_dims: tuple[int, ...]
    in_axes: tuple[str | None, ...]
    site: int

    @nn.compact
    def __call__(
        self, y: jax.Array, x_BxSxH: jax.Array, rows: jax.Array | None, layer: int,
        wanted_BxP: jax.Array | None,
    ) -> jax.Array:
        config = self.config
        dense = Dense(
            config, self.in_dims, (config.hidden_size,), self.in_axes, ('embed',), name='dense')
        y = config.layout(dense(y), 'batch', None, None)
        y = drop.dropout(y, config.hidden_dropout, rows, self.site, layer, wanted_BxP)
        return LayerNorm(config, name='LayerNorm')(x_BxSxH + y)


class Attention(nn.Module):
    """Self-attention and its output block."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x_BxSxH: jax.Array, segments_BxS: jax.Array, rows: jax.Array | None, layer: int,
        wanted_BxP: jax.Array | None = None,
    ) -> jax.Array:
        config = self.config
        attention = SelfAttention(config, name='self')
        context = attention(x_BxSxH, segments_BxS, rows, layer, wanted_BxP)
        if wanted_BxP is not None:
            x_BxSxH = gather_positions(x_BxSxH, wanted_BxP)
        output = Residual(
            config, (config.num_heads, config.head_dim), ('heads', None), drop.ATTENTION_OUTPUT,
            name='output')
        return output(context, x_BxSxH, rows, layer, wanted_BxP)


class Intermediate(nn.Module):
    """Dense to `intermediate_size`, then gelu."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x_BxSxH: jax.Array) -> jax.Array:
        config = self.config
        dense = Dense(
            config, (config.hidden_size,), (config.intermediate_size,), ('embed',), ('mlp',),
            name='dense')
        y_BxSxI = gelu(dense(x_BxSxH), config.hidden_act, config.layout.stores_gelu)
        return config.layout(y_BxSxI, 'batch', None, 'mlp')


class Layer(nn.Module):
    """One Transformer layer; with `wanted_BxP` its output is [B, P, H], at these positions only."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x_BxSxH: jax.Array, layer: int, segments_BxS: jax.Array, rows: jax.Array | None,
        wanted_BxP: jax.Array | None = None,
    ) -> jax.Array:
        config = self.config
        attention = Attention(config, name='attention')
        x_BxSxH = attention(x_BxSxH, segments_BxS, rows, layer, wanted_BxP)
        y_BxSxI = Intermediate(config, name='intermediate')(x_BxSxH)
        output = Residual(
            config, (config.intermediate_size,), ('mlp',), drop.FFN_OUTPUT, name='output')
        return output(y_BxSxI, x_BxSxH, rows, layer, wanted_BxP)


# What the backward pass finds stored, by `ModelConfig.remat`.
_REMAT_POLICIES = {
    'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    'full': jax.checkpoint_policies.nothing_saveable,
}


class Encoder(nn.Module):
    """All `num_layers` layers, rematerialised as `remat` says. Returns the output of each."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x_BxSxH: jax.Array, segments_BxS: jax.Array, rows: jax.Array | None,
        wanted_BxP: jax.Array | None = None,
    ) -> tuple[jax.Array, ...]:
        layer_class: Any = Layer
        if self.config.remat != 'none':
            layer_class = nn.remat(Layer, policy=_REMAT_POLICIES[self.config.remat])
        last = self.config.num_layers - 1
        outputs = []
        for i in range(self.config.num_layers):
            layer = layer_class(self.config, name=f'layer_{i}')
            wanted = wanted_BxP if i == last else None
            x_BxSxH = layer(x_BxSxH, i, segments_BxS, rows, wanted)
            outputs.append(x_BxSxH)
        return tuple(outputs)


def layer_of(names: Names) -> int | None:
    """Index of the layer that a parameter belongs to; None outside the layers."""
    if 'encoder' not in names:
        return None
    return int(names[names.index('encoder') + 1].removeprefix('layer_'))


class Pooler(nn.Module):
    """tanh of a dense layer on the outputs [..., H] at [CLS]."""

    config: ModelConfig

    @nn.compact
    def __call__(self, cls: jax.Array) -> jax.Array:
        hidden = self.config.hidden_size
        dense = Dense(self.config, (hidden,), (hidden,), ('embed',), (None,), name='dense')
        return jnp.tanh(dense(cls))


class Bert(nn.Module):
    """The encoder with its pooler.

    A row is one sequence or several packed ones. `sequence_ids` number the sequences 1, 2, ... and
    are 0 on padding: in a row of one sequence they are BERT's `input_mask`. Each sequence attends
    to itself only. Packed rows also have `position_ids`, which start at 0 in each sequence.

    Args:
      pooled: whether the model has a pooler (Hugging Face's token and span models have none).

    Returns a dict: `sequence_output` [B, S, H], `pooled_output` [B, H] (of the first token; None
    without pooler), `embedding_output` [B, S, H] and `layers`, a tuple of each layer's [B, S, H].
    """

    config: ModelConfig
    pooled: bool = True

    def setup(self) -> None:
        self.embeddings = Embeddings(self.config)
        self.encoder = Encoder(self.config)
        if self.pooled:
            self.pooler = Pooler(self.config)

    def __call__(
        self, input_ids_BxS: jax.Array, sequence_ids_BxS: jax.Array, segment_ids_BxS: jax.Array,
        rows_Bx2: jax.Array | None = None, position_ids_BxS: jax.Array | None = None,
        cls_positions_BxK: jax.Array | None = None, wanted_BxP: jax.Array | None = None,
    ) -> dict[str, Any]:
        """See the class.

        Args:
          cls_positions_BxK: position of each packed sequence's [CLS]; `pooled_output` is then
            [B, K, H].
          wanted_BxP: the positions at which the last layer's output is needed; None: all.
            `sequence_output` is then [B, P, H], with the same values and dropout, and
            `cls_positions` index into P. At other positions the last layer only projects to
            queries, keys and values, which is a quarter of its work.
        """
        embedded_BxSxH = self.embeddings(input_ids_BxS, segment_ids_BxS, rows_Bx2, position_ids_BxS)
        layers = self.encoder(embedded_BxSxH, sequence_ids_BxS, rows_Bx2, wanted_BxP)
        x_BxSxH = layers[-1]
        pooled = None
        if self.pooled:
            cls = x_BxSxH[:, 0]
            if cls_positions_BxK is not None:
                cls = gather_positions(x_BxSxH, cls_positions_BxK)
            pooled = self.pooler(cls)
        return {
            'sequence_output': x_BxSxH,
            'pooled_output': pooled,
            'embedding_output': embedded_BxSxH,
            'layers': layers,
        }
