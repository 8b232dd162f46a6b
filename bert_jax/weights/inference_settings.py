"""How a run made its predictions, as a model's config file says it (`Weights.inference`)."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.choices import (
    FEATURES,
    GOOGLE,
    POOLS,
    SEGMENTS,
    TOKEN_TYPES,
    TRUNCATIONS,
    WINDOWS,
)
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.schema import TEXT, TRUTH, Allowed, MapOf, Range, check_fields, count
from bert_jax.text.frames import Frame
from bert_jax.text.vocab import Vocab

# The key in the config files of other formats.
INFERENCE = 'bert_jax_inference'
# What each setting may be. A model with others, of a newer version or of a config file's own task,
# is read, and they are kept.
_SCHEMA: Mapping[str, Allowed | MapOf] = {
    'max_seq_length': count(2**16, least=3),  # [CLS], a piece, [SEP]
    'doc_stride': count(2**16),
    'max_query_length': count(2**16),
    'null_threshold': Range(-1e30, 1e30),
    'windows': ('', *WINDOWS),
    'truncation': TRUNCATIONS,
    'token_types': TOKEN_TYPES,
    'num_texts': count(2**10),
    'features': ('', *FEATURES),
    'pool': ('', *POOLS),
    'normalize': TRUTH,
    'other_pool': TEXT,
    'include_prompt': TRUTH,
    'do_lower_case': TRUTH,
    'prompts': MapOf(TEXT),
    'default_prompt': TEXT,
    'similarity': TEXT,
    'truncate_dim': count(2**24),
    'activation': TEXT,
}
# Of these, those that say how vectors are made of texts, and how texts are read for any head.
_OF_VECTORS = (
    'do_lower_case', 'prompts', 'default_prompt', 'include_prompt', 'pool', 'normalize',
    'other_pool', 'similarity', 'truncate_dim')
_OF_ENCODER = ('max_seq_length', 'truncation', 'token_types', *_OF_VECTORS)


def read_inference(settings: Any, where: str) -> dict[str, Any]:
    """The settings as `Weights.inference` has them, without those that are null.

    Args:
      settings: as read from JSON.
      where: the file and the key, for messages.

    Raises:
      InputError: they are no JSON object, or one has a value that it cannot have.
    """
    if settings is None:
        return {}
    check_fields(settings, _SCHEMA, where, 'fix it, or remove it')
    return {name: value for name, value in settings.items() if value is not None}


def without_head(inference: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that still hold when a model gets another head."""
    return {name: value for name, value in inference.items() if name in _OF_ENCODER}


def without_vectors(inference: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that do not say how vectors are made of texts."""
    return {name: value for name, value in inference.items() if name not in _OF_VECTORS}


def framing_of(inference: Mapping[str, Any]) -> dict[str, str]:
    """How texts become sequences for a model: its `truncation` and `token_types`.

    A setting that is missing, as in older runs, has the value that they all had.

    Args:
      inference: `Weights.inference`.
    """
    return {
        'truncation': inference.get('truncation', GOOGLE),
        'token_types': inference.get('token_types', SEGMENTS)}


def frame_of(vocab: Vocab, inference: Mapping[str, Any], num_types: int, source: str) -> Frame:
    """How texts become sequences for a model.

    Args:
      vocab: of its tokenizer.
      inference: `Weights.inference`.
      num_types: `BertConfig.type_vocab_size`. Of 1 or 0, types make no difference.
      source: of the model, for messages.

    Raises:
      InputError: the template needs more types of tokens than the model has.
    """
    frame = vocab.frame_for(**framing_of(inference))
    if 1 < num_types < frame.num_types:
        raise InputError(
            f'{source} has type_vocab_size={num_types}, and its tokenizer gives tokens the type '
            f'{frame.num_types - 1}: put the files of one model together')
    return frame
