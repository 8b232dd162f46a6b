"""How a run made its predictions, as a model's config file says it (`Weights.inference`)."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.choices import FEATURES, POOLS, WINDOWS
from bert_jax.runtime.schema import TEXT, TRUTH, Allowed, Range, check_fields, count

# The key in the config files of other formats.
INFERENCE = 'bert_jax_inference'
# What each setting may be. A model with others, of a newer version or of a config file's own task,
# is read, and they are kept.
_SCHEMA: Mapping[str, Allowed] = {
    'max_seq_length': count(2**16, least=3),  # [CLS], a piece, [SEP]
    'doc_stride': count(2**16),
    'max_query_length': count(2**16),
    'null_threshold': Range(-1e30, 1e30),
    'windows': ('', *WINDOWS),
    'num_texts': count(2**10),
    'features': ('', *FEATURES),
    'pool': ('', *POOLS),
    'normalize': TRUTH,
    'activation': TEXT,
}


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
    check_fields(settings, _SCHEMA, where, 'mend it, or remove it')
    return {name: value for name, value in settings.items() if value is not None}
