"""The model as a user of Python has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_jax.predict import features, masked_lm
from bert_jax.predict.answer import answer
from bert_jax.predict.classify import classify, next_sentence
from bert_jax.predict.loaded import LoadedModel, Text
from bert_jax.predict.tag import tag


class Model(LoadedModel):
    """A model to use; `bert_jax.predict.load` makes one.

    Every method takes texts in any number and order and returns one result for each, in that
    order. Texts are packed into rows of a few fixed shapes, so a second call compiles nothing new
    unless its texts are of another kind. Remarks (a text was too long, ...) are warnings, or go to
    `note` where that is set. Bad input is a `bert_jax.errors.InputError`, a ValueError.
    """

    def fill_mask(self, texts: Iterable[str], top_k: int = 5) -> list[dict[str, Any]]:
        """The likeliest tokens for each [MASK] in a text.

        Args:
          texts: each with one [MASK] or more. Of a text that is longer than the model takes, each
            [MASK] sees the tokens around it.
          top_k: predictions a [MASK].

        Returns:
          A text: {'text', 'predictions': [{'token', 'id', 'probability', 'sequence'}, ...]},
          likeliest first; 'sequence' is the text with the token put in. With several [MASK],
          'predictions' is a list of such lists, one for each.
        """
        return list(masked_lm.fill_mask(self, texts, top_k))

    def next_sentence(self, pairs: Iterable[Sequence[str]]) -> list[dict[str, Any]]:
        """How likely the second text of a pair follows the first in a document.

        Args:
          pairs: (first, second).

        Returns:
          A pair: {'first', 'second', 'probability'}.
        """
        return list(next_sentence(self, pairs))

    def score(self, texts: Iterable[str]) -> list[dict[str, Any]]:
        """Pseudo-log-likelihood: each token is masked in turn and its log probability summed.

        Salazar et al., 2020, "Masked Language Model Scoring". Of a text that is longer than the
        model takes, each token sees those around it.

        Returns:
          A text: {'text', 'num_tokens', 'log_probability', 'pseudo_perplexity'}, the last being
          exp(-log_probability / num_tokens). For a corpus take the sums of both.
        """
        return list(masked_lm.score(self, texts))

    def features(
        self, texts: Iterable[Text], layers: Sequence[int] = (-1,)
    ) -> list[dict[str, Any]]:
        """Hidden states of every token, [CLS] and [SEP] among them.

        Args:
          texts: texts or pairs; longer ones than the model takes are cut.
          layers: counted from the top, -1 being the last layer, -num_layers the first and one
            below that the embeddings.

        Returns:
          A text: {'tokens': n strings, 'values': [n, layers, hidden_size] float32}.
        """
        return list(features.token_features(self, texts, layers))

    def vectors(
        self, texts: Iterable[Text], pool: str = 'mean', layer: int = -1
    ) -> np.ndarray:
        """One vector a text: [texts, hidden_size] float32.

        Args:
          texts: texts or pairs; longer ones than the model takes are cut.
          pool: 'mean' over all tokens, [CLS] and [SEP] among them (as sentence-transformers has
            it), or 'cls', the hidden state of [CLS] (before the pooler).
          layer: as in `features`.
        """
        vectors = list(features.text_vectors(self, texts, pool, layer))
        return np.stack(vectors) if vectors else np.zeros((0, self.config.hidden_size), np.float32)

    def classify(self, texts: Iterable[Text]) -> list[dict[str, Any]]:
        """Labels of texts or pairs; values (regression); or which end fits (multiple choice).

        Args:
          texts: texts or pairs (first, second), as the model was trained on; for multiple choice
            (beginning, end, end, ...).

        Returns:
          A text: its 'text', or 'first' and 'second', with 'label', 'probability' and
          'probabilities' by label; or with 'value'; or 'text', 'choices', 'choice' (its place from
          0), 'probability' and 'probabilities'.
        """
        return list(classify(self, texts))

    def answer(
        self, questions: Iterable[tuple[str, str]], max_answer_length: int = 30,
        null_threshold: float | None = None,
    ) -> list[dict[str, Any]]:
        """The span of a context that answers a question.

        Args:
          questions: (question, context). Long contexts are read in windows of 384 tokens, 128
            apart.
          max_answer_length: tokens of an answer.
          null_threshold: '' is an answer too, where its score is above that of all others by more
            than this: the `null_threshold` of a SQuAD 2.0 run's result, or 0; None: never.

        Returns:
          A question: {'question', 'answer', 'start', 'end', 'score', 'probability'}; the answer is
          context[start:end], the score the sum of the logits of its first and last token, the
          probability that among the best 20 answers. From the score of '' the threshold is taken.
        """
        return list(answer(self, questions, max_answer_length, null_threshold))

    def tag(self, texts: Iterable[str]) -> list[dict[str, Any]]:
        """A label for each word (words stand between white space); its first piece decides.

        Texts that are longer than the model takes are read in windows that overlap by half.

        Returns:
          A text: {'text', 'tags': [{'word', 'label', 'probability'}, ...]}.
        """
        return list(tag(self, texts))
