"""A text of pre-training: its token store, what of it is held out, and its rows."""

import functools
from typing import NamedTuple

import numpy as np

from bert_jax.rows.pretrain import WholeTextRows
from bert_jax.rows.recipe import RowOptions
from bert_jax.rows.store import LoadedBlocks, TokenStore, held_out_limit
from bert_jax.rows.windows import WindowedExamples
from bert_jax.text.vocab import Vocab


class Split(NamedTuple):
    """How much of a text is held out.

    Attributes:
      fraction: of the documents; 0: none.
      min_documents: on each side, at least, where the text is shuffled whole.
    """

    fraction: float
    min_documents: int


class StoredText:
    """A text whose rows are made from a token store.

    Attributes:
      name: of the source.
      store: with the tokens.
      is_whole: whether the text is shuffled whole, in one window, rather than window by window.
    """

    def __init__(
        self, name: str, store: TokenStore, vocab: Vocab, split: Split, shuffle_blocks: int
    ):
        """Takes the store; nothing is read yet.

        Args:
          name: of the source.
          store: with the tokens.
          vocab: that the store was made with.
          split: what is held out.
          shuffle_blocks: how many blocks are shuffled at once.
        """
        self.name = name
        self.store = store
        self.is_whole = len(store.index) <= shuffle_blocks
        self._vocab = vocab
        self._split = split
        self._shuffle_blocks = shuffle_blocks

    def training(
        self, recipe: RowOptions, seed: int, lanes: int
    ) -> WholeTextRows | WindowedExamples:
        """Rows to train on.

        Args:
          recipe: how they are made.
          seed: of all draws.
          lanes: of a batch, if the text is not shuffled whole.

        Raises:
          InputError: too few documents.
        """
        if self.is_whole:
            documents, _ = self._documents
            return WholeTextRows(
                self._window, documents, recipe, self._vocab, seed, name=self.name)
        return WindowedExamples(
            self.store, self._split.fraction, recipe, self._vocab, seed,
            shuffle_blocks=self._shuffle_blocks, lanes=lanes, name=self.name)

    def held_out(self, recipe: RowOptions, seed: int) -> WholeTextRows:
        """Rows of the documents that are held out.

        Of a text that is not shuffled whole, these are the documents of `TokenStore.held_out`: all
        that are held out, or so many that they are enough to evaluate on.

        Raises:
          InputError: too few documents.
        """
        name = f'the held-out part of {self.name}'
        if self.is_whole:
            _, documents = self._documents
            return WholeTextRows(self._window, documents, recipe, self._vocab, seed, name=name)
        window = self.store.held_out()
        documents = np.flatnonzero(
            window.document_hashes < held_out_limit(self._split.fraction))
        return WholeTextRows(window, documents, recipe, self._vocab, seed, name=name)

    def evaluated(self, recipe: RowOptions, seed: int) -> WholeTextRows:
        """Rows of a text that is only evaluated on: of all its documents, or of a sample.

        Raises:
          InputError: too few documents.
        """
        window = self._evaluated_window()
        return WholeTextRows(
            window, window.documents, recipe, self._vocab, seed, name=self.name)

    def evaluated_hashes(self) -> np.ndarray:
        """The hashes of the documents that `evaluated` makes rows of, uint64."""
        window = self._evaluated_window()
        return window.document_hashes[window.documents]

    def _evaluated_window(self) -> LoadedBlocks:
        return self._window if self.is_whole else self.store.held_out()

    @property
    def num_held_out(self) -> int:
        """Documents that are held out, as far as they are known without reading the whole text."""
        if self.is_whole:
            return len(self._documents[1])
        return int((self.store.held_out().document_hashes
                    < held_out_limit(self._split.fraction)).sum())

    @functools.cached_property
    def _window(self) -> LoadedBlocks:
        """All blocks, in the order of the text."""
        return self.store.window(np.arange(len(self.store.index)))

    @functools.cached_property
    def _documents(self) -> tuple[np.ndarray, np.ndarray]:
        """The documents to train on and those that are held out, of the whole text."""
        return self._window.split_held_out(
            self._split.fraction, self._split.min_documents, self.name)
