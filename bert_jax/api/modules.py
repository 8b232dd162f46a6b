"""The flax module that users apply: Hugging Face's names outside, BERT's nouns inside.

    B: rows, S: row length, K: texts a row, P: masked positions a row, C: choices an example,
    H: hidden_size, V: vocabulary, L: labels, N: heads
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.heads import HEADS
from bert_jax.heads.base import Batch, Head, Keys, Outputs, Params, inputs_of
from bert_jax.heads.masked_lm_loss import masked_lm_logits
from bert_jax.heads.pretraining import PretrainingHeads
from bert_jax.kernels.dropout import dropout_keys
from bert_jax.model.attention import gather_positions
from bert_jax.model.encoder import Bert, kept_probabilities
from bert_jax.model.layers import ModelConfig
from bert_jax.predict.loaded import true_or_false
from bert_jax.runtime.errors import InputError, nearest
from bert_jax.runtime.forks import check_no_fork


class _Pretrained(NamedTuple):
    """Which heads of pre-training a model has, and what transformers calls their logits.

    Attributes:
      words: those of masked LM; '': there is no such head.
      pairs: those of next sentence; '': there is no such head.
    """

    words: str = ''
    pairs: str = ''


# The head `pretraining` is both of its parts; as in transformers, a model may have one alone.
_PRETRAINED: Mapping[str, _Pretrained] = MappingProxyType({
    'masked_lm': _Pretrained(words='logits'),
    'next_sentence': _Pretrained(pairs='logits'),
    'pretraining': _Pretrained(words='prediction_logits', pairs='seq_relationship_logits'),
})
ENCODER = 'encoder'
# The heads that a user names, each with its name in `heads.HEADS`.
HEAD_NAMES: Mapping[str, str] = MappingProxyType({
    ENCODER: '',
    **dict.fromkeys(_PRETRAINED, 'pretraining'),
    **{name: name for name, head in HEADS.items()
       if name not in ('', 'pretraining') and not head.stays_in_run},
})


def check_head_name(head: str) -> None:
    """Raises InputError if a user names a head that there is not."""
    if not isinstance(head, str) or head not in HEAD_NAMES:
        meant = str(head).removeprefix('sequence_')  # as transformers calls classifiers of texts
        raise InputError(f"head={head!r:.60} is unknown: {nearest(meant, HEAD_NAMES)} (all: "
                         f"{', '.join(HEAD_NAMES)})")


class EncoderAlone(nn.Module):
    """The encoder, with or without its pooler, as the parameter `bert`."""

    config: ModelConfig
    pooled: bool

    def setup(self) -> None:
        self.bert = Bert(self.config, self.pooled)

    def __call__(
        self, batch: Batch, dropout_keys_Bx2: Keys = None, encoded: Outputs | None = None
    ) -> dict[str, jax.Array]:
        """`last_hidden_state` [B, S, H] and, with a pooler, `pooler_output` [B, K, H]."""
        if encoded is None:
            encoded = self.bert(*inputs_of(batch, dropout_keys_Bx2), batch['cls_positions'])
        outputs = {'last_hidden_state': encoded['sequence_output']}
        if self.pooled:
            outputs['pooler_output'] = encoded['pooled_output']
        return outputs


class EncoderForPretraining(nn.Module):
    """The encoder with the heads of pre-training, or one of them.

    `heads.pretraining.BertForPreTraining` has the same parameters and keeps the logits of words out
    of memory; here they are an output.
    """

    config: ModelConfig
    has: _Pretrained

    def setup(self) -> None:
        self.bert = Bert(self.config, pooled=bool(self.has.pairs))
        self.cls = PretrainingHeads(self.config)

    def __call__(
        self, batch: Batch, dropout_keys_Bx2: Keys = None, encoded: Outputs | None = None
    ) -> dict[str, jax.Array]:
        """Logits of words [B, S, V], or [B, P, V] at `masked_lm_positions`, and pairs [B, K, 2]."""
        if encoded is None:
            encoded = self.bert(*inputs_of(batch, dropout_keys_Bx2), batch['cls_positions'])
        outputs = {}
        if self.has.words:
            outputs[self.has.words] = self._words(batch, encoded['sequence_output'])
        if self.has.pairs:
            pooled_BxKxH = encoded['pooled_output']
            outputs[self.has.pairs] = self.cls.seq_relationship.logits(pooled_BxKxH)
        return outputs

    def _words(self, batch: Batch, x_BxSxH: jax.Array) -> jax.Array:
        if 'masked_lm_positions' in batch:
            x_BxSxH = gather_positions(x_BxSxH, batch['masked_lm_positions'])
        hidden_BxSxE, bias_V = self.cls.predictions(x_BxSxH)
        table_VxE = self.cls.predictions.output_table(self.bert.embeddings.word_embeddings)
        table_VxE = self.config.layout(table_VxE, 'vocab', None)
        logits_BxSxV = masked_lm_logits((hidden_BxSxE, table_VxE, bias_V))
        return logits_BxSxV[..., : self.config.vocab_size]  # without padding rows


class DeclaredModule(nn.Module):
    """The project's module of a head, whose parameters are `layers.Parameter`s.

    Attributes:
      config, head, num_labels, pooled: as for `BertModule`.
    """

    config: ModelConfig
    head: str
    num_labels: int
    pooled: bool

    def setup(self) -> None:
        self.model = self._model()
        nn.share_scope(self, self.model)

    def _model(self) -> nn.Module:
        if self.head == ENCODER:
            return EncoderAlone(self.config, self.pooled)
        if self.head in _PRETRAINED:
            # As `heads.pretraining` says, pre-training reads [CLS] whatever a task's pooler reads.
            config = dataclasses.replace(self.config, pooling='cls')
            return EncoderForPretraining(config, _PRETRAINED[self.head])
        return _head(self.config, self.head, self.num_labels).module

    def __call__(
        self, batch: Batch, dropout_keys_Bx2: Keys = None, encoded: Outputs | None = None
    ) -> dict[str, jax.Array]:
        """Outputs by transformers' names, those of texts [B, K, ...]."""
        found = self.model(batch, dropout_keys_Bx2, encoded)
        if self.head == ENCODER or self.head in _PRETRAINED:
            return dict(found)
        return _head(self.config, self.head, self.num_labels).named(found)


def _head(config: ModelConfig, name: str, num_labels: int) -> Head:
    """The project's head of a task."""
    head = HEADS[name]
    made: Head = head(config, num_labels) if head.labelled else head(config)
    return made


class BertModule(nn.Module):
    """A model with a head, applied to arrays with Hugging Face's names.

    Its parameters are those of the project's head: `bert` and, by head, `cls` or `classifier`.
    They are plain arrays. The same module is applied to padded rows, one text a row, and to packed
    rows (`Tokenizer.pack`).

    Attributes:
      config: of the model and its computation.
      head: one of `HEAD_NAMES`.
      num_labels: outputs of a classifier; 0 where the head fixes their number.
      pooled: of an encoder without a head: whether it has a pooler.
    """

    config: ModelConfig
    head: str
    num_labels: int = 0
    pooled: bool = True

    def setup(self) -> None:
        # The parameters' declarations for meshes and optimizers (`layers.Parameter`) are taken off:
        # in a tree of one's own, plain arrays are what all of flax and optax expects.
        unboxed: Any = nn.map_variables(
            DeclaredModule, 'params', trans_out_fn=nn.meta.unbox, init=True)
        self.model = unboxed(self.config, self.head, self.num_labels, self.pooled)
        nn.share_scope(self, self.model)

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        token_type_ids: jax.Array | None = None,
        position_ids: jax.Array | None = None,
        cls_positions: jax.Array | None = None,
        masked_lm_positions: jax.Array | None = None,
        *,
        deterministic: bool = True,
        dropout_at: tuple[jax.Array | int, jax.Array | int] | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> dict[str, Any]:
        """The outputs of the head by transformers' names; at padding they mean nothing.

        Args:
          input_ids: [B, S] integers; of multiple choice [B, C, S].
          attention_mask: like `input_ids`: 1 on tokens, 0 on padding; in packed rows, the number
            of a token's text in its row, from 1. None: all are tokens of one text.
          token_type_ids: like `input_ids`: 1 on the second text of a pair; None: 0 everywhere.
          position_ids: like `input_ids`, from 0 in each text, in every family; None: places in the
            row.
          cls_positions: [B, K], of packed rows: where each text begins. Outputs of texts are then
            [B, K, ...] instead of [B, ...].
          masked_lm_positions: [B, P]: the positions whose words are predicted; None: all.
          deterministic: False: dropout applies, drawn from the rng `dropout`
            (`rngs={'dropout': key}`).
          dropout_at: (seed, step): dropout applies, with the masks that a run with this seed draws
            for the same rows after so many steps, on any number of devices; no rng is needed.
          output_hidden_states: adds `hidden_states`, a tuple of [B, S, H]: what the first layer
            reads, then what each layer returns.
          output_attentions: adds `attentions`, a tuple of each layer's [B, N, S, S] float32.

        Returns:
          By head: `last_hidden_state` [B, S, H] and `pooler_output` [B, H]; `logits` of words
          [B, S, V], texts [B, L], choices [B, C] or tokens [B, S, L]; `start_logits` and
          `end_logits` [B, S]; `prediction_logits` and `seq_relationship_logits`. Logits are
          float32.

        Raises:
          InputError: an array has a wrong shape, or rows are longer than the model takes; or this
            process is a fork of one that has used jax.
        """
        check_no_fork(f'head={self.head!r}')
        deterministic = true_or_false('deterministic', deterministic)
        output_hidden_states = true_or_false('output_hidden_states', output_hidden_states)
        output_attentions = true_or_false('output_attentions', output_attentions)
        _check_shapes(input_ids, {
            'attention_mask': attention_mask, 'token_type_ids': token_type_ids,
            'position_ids': position_ids})
        self._check(input_ids, position_ids, masked_lm_positions)
        batch = _in_berts_nouns(
            input_ids, attention_mask, token_type_ids, position_ids, cls_positions)
        if masked_lm_positions is not None:
            batch['masked_lm_positions'] = jnp.asarray(masked_lm_positions)
        dropout_keys_Bx2 = self._dropout_keys(len(batch['input_ids']), deterministic, dropout_at)
        states: dict[str, Any] = {}
        encoded = None
        if output_hidden_states or output_attentions:
            if self.is_initializing():
                self.model(batch, dropout_keys_Bx2, None)  # makes the parameters
            encoded, states = self._encode_everywhere(batch, dropout_keys_Bx2, output_attentions)
            if not output_hidden_states:
                del states['hidden_states']
        outputs = self.model(batch, dropout_keys_Bx2, encoded)
        is_packed = cls_positions is not None
        return self._in_shapes_of(input_ids, outputs, is_packed) | states

    def _in_shapes_of(
        self, input_ids: Any, outputs: Mapping[str, jax.Array], is_packed: bool
    ) -> dict[str, Any]:
        """The model's outputs, with one of a text as [B, ...] or [B, C] if rows are not packed."""
        shaped = {}
        for name, x in outputs.items():
            has_one_text = not is_packed and self._is_of_texts(name)
            shaped[name] = x[:, 0] if has_one_text else x
        if self.head == 'multiple_choice' and jnp.ndim(input_ids) == 3:
            shaped['logits'] = shaped['logits'].reshape(jnp.shape(input_ids)[:2])
        return shaped

    def _check(self, input_ids: Any, position_ids: Any, masked_lm_positions: Any) -> None:
        """Raises InputError for arrays that this model does not take."""
        shape = jnp.shape(input_ids)
        allowed = (2, 3) if self.head == 'multiple_choice' else (2,)
        if len(shape) not in allowed:
            wanted = '[examples, choices, tokens]' if 3 in allowed else '[rows, tokens]'
            raise InputError(f'input_ids has the shape {list(shape)}: head={self.head!r} takes '
                             f'{wanted}')
        most = self.config.max_length
        # The length is symbolic where a program is exported for any.
        if position_ids is None and isinstance(shape[-1], int) and shape[-1] > most:
            raise InputError(f'input_ids has rows of {shape[-1]} tokens, and the model takes '
                             f'{most}: give the tokenizer max_length={most}')
        if masked_lm_positions is not None and not _PRETRAINED.get(self.head, _Pretrained()).words:
            raise InputError(f'masked_lm_positions is given, and head={self.head!r} predicts no '
                             'words: leave it out, or take masked_lm or pretraining')

    def _dropout_keys(self, num_rows: int, deterministic: bool, dropout_at: Any) -> Keys:
        """Dropout keys [B, 2]; None without dropout. See `__call__`."""
        if dropout_at is not None:
            seed, step = dropout_at
        elif deterministic:
            return None
        else:
            seed, step = jax.random.bits(self.make_rng('dropout'), (2,))
        return dropout_keys(seed, step, jnp.arange(num_rows))

    def _encode_everywhere(
        self, batch: Batch, dropout_keys_Bx2: Keys, output_attentions: bool
    ) -> tuple[Outputs, dict[str, Any]]:
        """(What `Bert` returns at all positions, the states that a user asked for).

        Raises:
          InputError: the head is one of an ablation, which reads other states.
        """
        config = self.config
        if config.causal or config.bilstm:
            name = 'causal' if config.causal else 'bilstm'
            raise InputError(f'output_hidden_states and output_attentions are not for a model with '
                             f'{name}=True: leave them out')
        params = self.variables['params']['bert']
        if self.head in _PRETRAINED:
            config = dataclasses.replace(config, pooling='cls')
        encoder = Bert(config, pooled='pooler' in params or not config.pooler, parent=None)
        kept: Any = ['intermediates'] if output_attentions else False
        found: Any = encoder.apply(
            {'params': params}, *inputs_of(batch, dropout_keys_Bx2), batch['cls_positions'],
            mutable=kept)
        encoded, probabilities = found if output_attentions else (found, {})
        states = {'hidden_states': (encoded['embedding_output'], *encoded['layers'])}
        if output_attentions:
            states['attentions'] = tuple(
                kept_probabilities(probabilities['intermediates'], config))
        return encoded, states

    def _is_of_texts(self, output: str) -> bool:
        """Whether an output is of texts [B, K, ...], not of tokens."""
        if output != 'logits':
            return output in ('pooler_output', 'seq_relationship_logits')
        return self.head == 'next_sentence' or HEADS[HEAD_NAMES[self.head]].needs_pooler


def _check_shapes(input_ids: Any, others: Mapping[str, Any]) -> None:
    """Raises InputError for an array, by name, that is not of the shape of `input_ids`."""
    shape = jnp.shape(input_ids)
    for name, x in others.items():
        if x is not None and jnp.shape(x) != shape:
            raise InputError(f'{name} has the shape {list(jnp.shape(x))}, and input_ids '
                             f'{list(shape)}: they have to be equal')


def declared_params(module: BertModule, rng: jax.Array) -> Params:
    """Fresh parameters of a module, as `layers.Parameter`s with their declarations."""
    # The attention kernel does not take every shape of a batch.
    config = dataclasses.replace(module.config, attention='xla')
    input_ids_1xS = jnp.ones((1, min(8, config.max_length)), jnp.int32)
    batch = _in_berts_nouns(input_ids_1xS, None, None, None, None)
    declared = DeclaredModule(config, module.head, module.num_labels, module.pooled)
    return declared.init(rng, batch)['params']


def _in_berts_nouns(
    input_ids: Any, attention_mask: Any, token_type_ids: Any, position_ids: Any, cls_positions: Any
) -> dict[str, jax.Array]:
    """A batch of rows as heads take it; choices become rows."""
    length = jnp.shape(input_ids)[-1]
    ids_BxS = jnp.asarray(input_ids).reshape(-1, length)

    def rows_of(x: Any, otherwise: jax.Array) -> jax.Array:
        if x is None:
            return otherwise
        return jnp.asarray(x).reshape(-1, length).astype(jnp.int32)

    batch = {
        'input_ids': ids_BxS,
        'sequence_ids': rows_of(attention_mask, jnp.ones_like(ids_BxS, jnp.int32)),
        'segment_ids': rows_of(token_type_ids, jnp.zeros_like(ids_BxS, jnp.int32)),
    }
    if position_ids is not None:
        batch['position_ids'] = rows_of(position_ids, ids_BxS)
    if cls_positions is None:
        batch['cls_positions'] = jnp.zeros((len(ids_BxS), 1), jnp.int32)
    else:
        batch['cls_positions'] = jnp.asarray(cls_positions)
    return batch
