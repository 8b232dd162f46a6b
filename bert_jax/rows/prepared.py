"""The opened text of a run: `corpus.prepare` makes it, tasks take it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.rows.sequences import Encode
from bert_jax.rows.store import TokenStore
from bert_jax.runtime.files import Path
from bert_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The vocabulary of a run, and the open sources of pre-training.

    Attributes:
      vocab_path: the vocabulary's file on this host's disk.
      tokenizer: of this vocabulary.
      encode: tokenizes many texts with it.
      stores: by name, the sources that are text.
      records: by name, the sources that are Google's ready-made rows (`corpus.records`).
    """

    vocab_path: Path
    tokenizer: Tokenizer
    encode: Encode
    stores: Mapping[str, TokenStore] = dataclasses.field(default_factory=dict)
    records: Mapping[str, Any] = dataclasses.field(default_factory=dict)
