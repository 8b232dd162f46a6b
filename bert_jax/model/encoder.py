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
        c = self.config

        def table(name: str, axis: str | None, rows: int, padding: int = 0) -> Any:
            def init(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
                return jnp.pad(c.kernel_init(key, shape), ((0, padding), (0, 0)))

            return self.param(name, parameter(init, axis, 'embed'), (rows, c.hidden_size))

        # Padding rows are and stay zero: they are never looked up, and their logits are masked.
        self.word_embeddings = table(
            'word_embeddings', 'vocab', c.vocab_size, c.padded_vocab_size - c.vocab_size)
        self.position_embeddings = table('position_embeddings', None, c.max_position_embeddings)
        self.token_type_embeddings = table('token_type_embeddings', None, c.type_vocab_size)
        self.layer_norm = LayerNorm(c, name='LayerNorm')

    def __call__(
        self, input_ids_BxS: jax.Array, segment_ids_BxS: jax.Array, rows_Bx2: jax.Array | None,
        position_ids_BxS: jax.Array | None = None,
    ) -> jax.Array:
        c = self.config
        words_BxSxH = jnp.take(self.word_embeddings, input_ids_BxS, axis=0)
        # A product with one-hot rows: there are few types, and its gradient needs no scatter.
        types_BxSxT = jax.nn.one_hot(segment_ids_BxS, c.type_vocab_size, dtype=jnp.float32)
        types_BxSxH = jnp.einsum('BST,TH->BSH', types_BxSxT, self.token_type_embeddings,
                                 precision=jax.lax.Precision.HIGHEST)
        if position_ids_BxS is None:
            positions = self.position_embeddings[: input_ids_BxS.shape[1]]
        else:
            positions = jnp.take(self.position_embeddings, position_ids_BxS, axis=0)
        x_BxSxH = self.layer_norm(words_BxSxH + types_BxSxH + positions)
        x_BxSxH = drop.dropout(x_BxSxH, c.hidden_dropout, rows_Bx2, drop.EMBEDDINGS)
        return c.layout(x_BxSxH, 'batch', None, None)


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
        c = self.config
        y = Dense(c, self.in_dims, (c.hidden_size,), self.in_axes, ('embed',), name='dense')(y)
        y = c.layout(y, 'batch', None, None)
        y = drop.dropout(y, c.hidden_dropout, rows, self.site, layer, wanted_BxP)
        return LayerNorm(c, name='LayerNorm')(x_BxSxH + y)


class Attention(nn.Module):
    """Self-attention and its output block."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x_BxSxH: jax.Array, segments_BxS: jax.Array, rows: jax.Array | None, layer: int,
        wanted_BxP: jax.Array | None = None,
    ) -> jax.Array:
        c = self.config
        context = SelfAttention(c, name='self')(x_BxSxH, segments_BxS, rows, layer, wanted_BxP)
        if wanted_BxP is not None:
            x_BxSxH = gather_positions(x_BxSxH, wanted_BxP)
        output = Residual(
            c, (c.num_heads, c.head_dim), ('heads', None), drop.ATTENTION_OUTPUT, name='output')
        return output(context, x_BxSxH, rows, layer, wanted_BxP)


class Intermediate(nn.Module):
    """Dense to `intermediate_size`, then gelu."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x_BxSxH: jax.Array) -> jax.Array:
        c = self.config
        dense = Dense(
            c, (c.hidden_size,), (c.intermediate_size,), ('embed',), ('mlp',), name='dense')
        y_BxSxI = gelu(dense(x_BxSxH), c.hidden_act, c.layout.stores_gelu)
        return c.layout(y_BxSxI, 'batch', None, 'mlp')


class Layer(nn.Module):
    """One Transformer layer; with `wanted_BxP` its output is [B, P, H], at these positions only."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x_BxSxH: jax.Array, layer: int, segments_BxS: jax.Array, rows: jax.Array | None,
        wanted_BxP: jax.Array | None = None,
    ) -> jax.Array:
        c = self.config
        x_BxSxH = Attention(c, name='attention')(x_BxSxH, segments_BxS, rows, layer, wanted_BxP)
        y_BxSxI = Intermediate(c, name='intermediate')(x_BxSxH)
        output = Residual(c, (c.intermediate_size,), ('mlp',), drop.FFN_OUTPUT, name='output')
        return output(y_BxSxI, x_BxSxH, rows, layer, wanted_BxP)


class Encoder(nn.Module):
    """All `num_layers` layers, rematerialised as `remat` says. Returns the output of each."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x_BxSxH: jax.Array, segments_BxS: jax.Array, rows: jax.Array | None,
        wanted_BxP: jax.Array | None = None,
    ) -> tuple[jax.Array, ...]:
        c = self.config
        layer_class: Any = Layer
        if c.remat != 'none':
            layer_class = nn.remat(Layer, policy={
                'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
                'full': jax.checkpoint_policies.nothing_saveable}[c.remat])
        layers = [x_BxSxH]
        for i in range(c.num_layers):
            wanted = wanted_BxP if i == c.num_layers - 1 else None
            layer = layer_class(c, name=f'layer_{i}')
            layers.append(layer(layers[-1], i, segments_BxS, rows, wanted))
        return tuple(layers[1:])


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
        c = self.config
        dense = Dense(c, (c.hidden_size,), (c.hidden_size,), ('embed',), (None,), name='dense')
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
        return {'sequence_output': x_BxSxH, 'pooled_output': pooled,
                'embedding_output': embedded_BxSxH, 'layers': layers}
