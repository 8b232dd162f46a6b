"""How a model takes texts: the tokenizer of its weights, and what it puts around tokens."""

import functools

from bert_jax.runtime.errors import InputError
from bert_jax.text.frames import Frame
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.vocab import Vocab
from bert_jax.weights.inference_settings import frame_of
from bert_jax.weights.parameters import Weights


class TextReader:
    """The tokenizer, the frame and the longest sequence of a model.

    Attributes:
      weights: as read.
      max_length: the most tokens of a sequence, [CLS] and [SEP] included.
    """

    def __init__(self, weights: Weights, remedy: str):
        """Reads the vocabulary, if there is one.

        Args:
          weights: of the model.
          remedy: what to do where they have no vocabulary, for messages.
        """
        self.weights = weights
        self.max_length = weights.max_length
        self._remedy = remedy
        # Read now, not when it is first used: a relative path may name another file by then.
        self._tokenizer: Tokenizer | None = None
        if weights.vocab_file is not None:
            self._tokenizer = load_tokenizer(weights.vocab_file, weights.lowercase)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the weights' vocabulary.

        Raises:
          InputError: the weights have no vocabulary.
        """
        if self._tokenizer is None:
            raise InputError(f'{self.weights.source} has no vocabulary: {self._remedy}')
        return self._tokenizer

    @property
    def vocab(self) -> Vocab:
        """The vocabulary of the tokenizer."""
        return self.tokenizer.vocab

    @functools.cached_property
    def frame(self) -> Frame:
        """How texts become sequences, as in the model's run or where it comes from.

        Raises:
          InputError: the tokenizer's template needs more types of tokens than the model has.
        """
        weights = self.weights
        return frame_of(
            self.vocab, weights.inference, weights.model['type_vocab_size'], weights.source)
