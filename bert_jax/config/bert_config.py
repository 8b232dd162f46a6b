"""The fields of a model, with their ranges and their names in other formats."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self

from bert_jax.runtime.schema import Allowed, Range, count

Effect = Literal['shape', 'computes', 'trains']

SIZE = count(2**24)
SIZE_OR_NONE = count(2**24, least=0)
DEPTH = count(4096)  # lower, because each layer is compiled
SMALL = Range(0, 1, without=(0, 1))
BELOW_1 = Range(0, 1, without=(1,))
BASE = Range(0, 1e12, without=(0,))

# How a model is computed, by the names in `config.model`. Rounding may differ, so a run may resume
# with another value.
COMPUTATION: Mapping[str, tuple[Any, ...]] = {
    'dtype': ('auto', 'float32', 'bfloat16'),
    'remat': ('none', 'dots', 'full'),
    'attention': ('auto', 'xla', 'kernel', 'cudnn'),
}


class Spelling(NamedTuple):
    """The name and values of a field in a format's config file.

    Attributes:
      key: the field's name there.
      values: maps the format's values to ours where they differ; we write the first that matches.
      ours: whether the format's code ignores the key. It is then written only for a value other
        than the default, with a note, because that code computes with the default.
      allowed: the values that the format can have; None: all that the option can have.
    """

    key: str
    values: Mapping[str, Any] = MappingProxyType({})
    ours: bool = False
    allowed: Allowed | None = None


@dataclasses.dataclass(frozen=True)
class Option:
    """A field of `BertConfig`.

    Attributes:
      name: of the field, here, in `config.model` and in run directories.
      default: value where a file lacks the field; None: every file has it.
      allowed: a range such as SIZE, or a tuple of values.
      effect: 'shape' determines which parameters exist, 'computes' what they compute, 'trains' how
        they are trained. A checkpoint determines the first two.
      tf1: its spelling in google-research/bert's config files. None: they have no such field, so
        only a model with the default can be written there. (Those in Hugging Face's config files
        are in `weights/families/`.)
    """

    name: str
    default: Any
    allowed: Allowed
    effect: Effect
    tf1: Spelling | None

    @property
    def type(self) -> type:
        """The type of the option's values."""
        return int if self.default is None else type(self.default)


def _option(
    effect: Effect, allowed: Allowed, default: Any = dataclasses.MISSING,
    tf1: Spelling | str | None = None,
) -> Any:
    """A field of `BertConfig`; a spelling may be the key alone."""
    if isinstance(tf1, str):
        tf1 = Spelling(tf1)
    return dataclasses.field(default=default, metadata={
        'effect': effect, 'allowed': allowed, 'tf1': tf1})


def _size(key: str, default: Any = dataclasses.MISSING, allowed: Range = SIZE) -> Any:
    """A size, with its key in TF1."""
    return _option('shape', allowed, default, key)


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """A model's sizes, numerics and dropout rates. Hashable, so it can be static under jit.

    The defaults are the paper's BERT; with other values it is a model of its family, such as
    RoBERTa, ELECTRA, DistilBERT or ModernBERT.
    """

    vocab_size: int = _size('vocab_size')
    num_layers: int = _size('num_hidden_layers', allowed=DEPTH)
    hidden_size: int = _size('hidden_size')
    num_heads: int = _size('num_attention_heads')
    intermediate_size: int = _size('intermediate_size')
    max_position_embeddings: int = _size('max_position_embeddings', 512)
    # Of keys and values, each for a group of equally many heads of queries (Ainslie et al., 2023);
    # 0: as many as num_heads.
    num_kv_heads: int = _option('shape', SIZE_OR_NONE, 0)
    # Of segments. 1: every token has that row, also in the second text of a pair; 0: no table.
    type_vocab_size: int = _option(
        'shape', SIZE_OR_NONE, 2, Spelling('type_vocab_size', allowed=SIZE))
    # Columns of the embedding tables, whose sum is then projected to hidden_size (ELECTRA-Small);
    # 0: hidden_size, without a projection.
    embedding_size: int = _option('shape', SIZE_OR_NONE, 0)
    # Whether there is a LayerNorm behind the sum of the embeddings.
    embedding_norm: bool = _option('shape', (True, False), True)
    # table: a row is added for each position. rotary: queries and keys are turned by their place
    # in the row (Su et al., 2021), and max_position_embeddings only limits the length.
    positions: str = _option('shape', ('table', 'rotary'), 'table')
    # Row of the position table for a sequence's first token. Those before it are never used
    # (RoBERTa: 2).
    first_position: int = _option('computes', SIZE_OR_NONE, 0)
    # T5's relative positions besides (MPNet): each head adds numbers for the distances of tokens to
    # their scores, in all layers the same.
    relative_positions: bool = _option('shape', (False, True), False)
    # gelu_tanh: the approximation of google-research/bert; gelu_erf: exact, as Hugging Face's
    # `gelu`; silu: x times its sigmoid; relu: x, or 0 where it is negative.
    hidden_act: str = _option(
        'computes', ('gelu_tanh', 'gelu_erf', 'silu', 'relu'), 'gelu_tanh',
        Spelling('gelu_form', {'tanh': 'gelu_tanh', 'erf': 'gelu_erf'}, ours=True))
    # Left-to-right: a token attends to itself and those before it, the paper's ablation (5.1).
    causal: bool = _option('computes', (False, True), False)
    # A BiLSTM between the encoder and the head of a downstream task (the same section), with half
    # of hidden_size for each direction.
    bilstm: bool = _option('shape', (False, True), False)
    # All layers have the parameters of the first (ALBERT; Lan et al., 2020).
    shared_layers: bool = _option('shape', (False, True), False)
    # LayerNorm before attention and before the feed-forward block, and once behind the last layer,
    # instead of after each residual connection. Layer 0 has none before attention if the embeddings
    # have their own.
    pre_norm: bool = _option('shape', (False, True), False)
    # rms: every LayerNorm is an RMSNorm (Zhang and Sennrich, 2019), which subtracts no mean and has
    # no bias.
    norm: str = _option('shape', ('layer', 'rms'), 'layer')
    # GLU (Shazeer, 2020): hidden_act of one half of the intermediate layer, times the other.
    gated: bool = _option('shape', (False, True), False)
    # Whether Dense and LayerNorm have biases. Output layers of heads always do.
    biases: bool = _option('shape', (True, False), True)
    # With biases, which products of the layers have them: all, all but that to intermediate_size
    # (GTE), or none (NomicBERT, EuroBERT).
    layer_biases: str = _option('shape', ('all', 'not_intermediate', 'none'), 'all')
    # Tokens of the window that local layers attend to, half on each side; 0: all layers are global.
    # The layers first_global, first_global + global_every, ... are global.
    local_attention: int = _option('computes', SIZE_OR_NONE, 0)
    global_every: int = _option('computes', DEPTH, 3)  # see local_attention
    first_global: int = _option('computes', SIZE_OR_NONE, 0)  # see local_attention
    # Of rotary positions, in global and in local layers: the wavelengths go from 2 pi to 2 pi times
    # this.
    rotary_base: float = _option('computes', BASE, 10_000.0)
    local_rotary_base: float = _option('computes', BASE, 10_000.0)  # see rotary_base
    # Longer wavelengths by this, in all layers: scaled positions ('linear' in transformers).
    rotary_factor: float = _option('computes', BASE, 1.0)
    # Whether heads on sequences read the pooler, a dense layer; else they read what it would.
    pooler: bool = _option('shape', (True, False), True)
    # The vector that the pooler reads: that of [CLS], or the mean over all tokens of the sequence.
    # late: the pooler reads every token, and the mean is of what it makes of them (EuroBERT).
    pooling: str = _option('computes', ('cls', 'mean', 'late'), 'cls')
    # Of the pooler's dense layer.
    pooler_act: str = _option('computes', ('tanh', 'gelu_tanh', 'gelu_erf', 'relu', 'silu'), 'tanh')
    # A LayerNorm behind it.
    pooler_norm: bool = _option('shape', (False, True), False)
    # Heads on tokens (tagging, answer spans) read the pooler's layers, applied to every token.
    pools_tokens: bool = _option('shape', (False, True), False)
    # What predicts masked words. bert: a dense layer, hidden_act, LayerNorm, and the embeddings of
    # words with a bias. linear: an output layer of its own, without a bias (EuroBERT). two_layers:
    # the same behind two dense layers without biases, each with gelu_tanh (UltraBERT).
    masked_lm_head: str = _option('shape', ('bert', 'linear', 'two_layers'), 'bert')
    # Columns between these two; 0: hidden_size.
    masked_lm_size: int = _option('shape', SIZE_OR_NONE, 0)
    layer_norm_eps: float = _option(
        'computes', SMALL, 1e-12, Spelling('layer_norm_eps', ours=True))
    # Truncated normal, cut at two standard deviations.
    initializer_range: float = _option('trains', SMALL, 0.02, 'initializer_range')
    # Of the kernels that end a residual branch. by_depth: a deviation smaller by the square root of
    # the number of branches, two a layer (Megatron-LM, ModernBERT).
    initializer: str = _option('trains', ('normal', 'by_depth'), 'normal')
    hidden_dropout: float = _option('trains', BELOW_1, 0.1, 'hidden_dropout_prob')
    attention_dropout: float = _option('trains', BELOW_1, 0.1, 'attention_probs_dropout_prob')
    # Before the pooler's dense layer.
    pooler_dropout: float = _option('trains', BELOW_1, 0.0)
    # Before the output layer of a downstream task.
    classifier_dropout: float = _option(
        'trains', BELOW_1, 0.1, Spelling('classifier_dropout', ours=True))

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def num_distinct_layers(self) -> int:
        """How many layers have parameters of their own: the first so many."""
        return 1 if self.shared_layers else self.num_layers

    @property
    def num_masked_lm_columns(self) -> int:
        """The size between the dense layers of `masked_lm_head='two_layers'`."""
        return self.masked_lm_size or self.hidden_size

    @property
    def grouped_heads(self) -> int:
        """How many heads of queries have a head of keys and values in common."""
        return self.num_heads // (self.num_kv_heads or self.num_heads)

    @property
    def has_layer_biases(self) -> bool:
        """Whether the products of a layer have biases, but for that to `intermediate_size`."""
        return self.biases and self.layer_biases != 'none'

    @property
    def has_intermediate_biases(self) -> bool:
        """Whether the product to `intermediate_size` has."""
        return self.biases and self.layer_biases == 'all'

    @property
    def max_length(self) -> int:
        """The most tokens of a sequence, [CLS] and [SEP] included."""
        return self.max_position_embeddings - self.first_position

    @property
    def num_embedding_columns(self) -> int:
        """The size of a row of the embedding tables."""
        return self.embedding_size or self.hidden_size

    def of_layer(self, layer: int) -> Self:
        """The options of one layer.

        Its `local_attention` is that layer's window, 0 in a global layer, and its `rotary_base`
        that layer's base. Whatever else differs from layer to layer belongs here. The index is a
        plain number: layers with other options are other programs.
        """
        if not self.local_attention:
            return self
        if (layer - self.first_global) % self.global_every == 0:
            return dataclasses.replace(self, local_attention=0)
        return dataclasses.replace(self, rotary_base=self.local_rotary_base)

    def contradiction(self) -> str:
        """Why these fields contradict each other, beginning with a field's name; else ''."""
        if self.hidden_size % self.num_heads:
            return (f'num_heads={self.num_heads} does not divide hidden_size={self.hidden_size}: '
                    'take a number that does')
        if self.max_length < 1:
            return (f'first_position={self.first_position} leaves none of the rows of '
                    f'max_position_embeddings={self.max_position_embeddings}: take a smaller one')
        if self.positions == 'rotary' and self.head_dim % 2:
            return (f"positions='rotary' turns pairs of dims, and a head has {self.head_dim} "
                    f'(hidden_size / num_heads): take an even number')
        if self.positions == 'rotary' and self.first_position:
            return (f"first_position={self.first_position} is a row of a table, and "
                    "positions='rotary' has none: take 0")
        if self.positions != 'rotary' and self.rotary_factor != 1:
            return (f'rotary_factor={self.rotary_factor} is of rotary positions, and positions='
                    f'{self.positions!r} has none: take 1.0')
        if self.shared_layers and (self.pre_norm or self.local_attention):
            name = 'pre_norm' if self.pre_norm else 'local_attention'
            return (f'shared_layers=True makes all layers alike, and with {name} they are not: '
                    'set one of the two')
        kv_heads = self.num_kv_heads
        if kv_heads == self.num_heads or (kv_heads and self.num_heads % kv_heads):
            return (f'num_kv_heads={kv_heads}: take a smaller number that divides '
                    f'num_heads={self.num_heads}, or 0 for as many')
        if self.masked_lm_head != 'bert' and self.num_embedding_columns != self.hidden_size:
            return (f'masked_lm_head={self.masked_lm_head!r} predicts from hidden_size='
                    f'{self.hidden_size}, and embedding_size={self.embedding_size} is another: '
                    "take 0, or 'bert'")
        if self.masked_lm_size and self.masked_lm_head != 'two_layers':
            return (f'masked_lm_size={self.masked_lm_size} is of masked_lm_head='
                    f"'two_layers': take 0")
        if not self.pooler and (self.pooler_norm or self.pools_tokens):
            return 'pooler=False leaves out what has pooler_norm and pools_tokens: set them False'
        if not self.biases and self.layer_biases != 'all':
            return (f'layer_biases={self.layer_biases!r} is of a model with biases, and '
                    "biases=False has none: take 'all'")
        return ''



def _option_of(field: dataclasses.Field[Any]) -> Option:
    """The option that a field of `BertConfig` declares."""
    default = None if field.default is dataclasses.MISSING else field.default
    return Option(field.name, default, **field.metadata)


OPTIONS: tuple[Option, ...] = tuple(map(_option_of, dataclasses.fields(BertConfig)))
