"""The model as a user of Python has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_jax.predict import commands, features
from bert_jax.predict.commands import Pair, Single, Text
from bert_jax.predict.loaded import LoadedModel
from bert_jax.runtime.errors import InputError


class Model(LoadedModel):
    """A model to use; `bert_jax.predict.load` makes one.

    Every method takes texts in any number and order and returns one result for each, in that
    order. `iter_...` is the same as a generator: texts may come from anywhere without end, results
    follow a few thousand tokens behind, and memory stays as it is. Texts are packed into rows of a
    few fixed shapes, so a second call compiles nothing new unless its texts have other lengths.

    A text that cannot be read (an empty one, a number) affects no other: its result has the reason
    in 'error'. Notes (a text was too long, ...) are warnings, or go to `note` where that is set.
    Bad arguments raise a `bert_jax.runtime.errors.InputError`, which is a ValueError.
    """

    iter_fill_mask = commands.fill_mask
    iter_next_sentence = commands.next_sentence
    iter_score = commands.score
    iter_classify = commands.classify
    iter_answer = commands.answer
    iter_tag = commands.tag
    iter_features = features.token_features
    iter_vectors = features.text_vectors

    def fill_mask(self, texts: Iterable[Single], top_k: int = 5) -> list[dict[str, Any]]:
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
        return list(self.iter_fill_mask(texts, top_k))

    def next_sentence(self, pairs: Iterable[Pair]) -> list[dict[str, Any]]:
        """The probability that the second text of a pair follows the first in a document.

        Args:
          pairs: (first, second).

        Returns:
          A pair: {'first', 'second', 'probability'}.
        """
        return list(self.iter_next_sentence(pairs))

    def score(self, texts: Iterable[Single]) -> list[dict[str, Any]]:
        """Pseudo-log-likelihood: each token is masked in turn and its log probability summed.

        Salazar et al., 2020, "Masked Language Model Scoring". Of a text that is longer than the
        model takes, each token sees those around it.

        Returns:
          A text: {'text', 'num_tokens', 'log_probability', 'pseudo_perplexity'}, the last being
          exp(-log_probability / num_tokens). For a corpus take the sums of both.
        """
        return list(self.iter_score(texts))

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
        return list(self.iter_features(texts, layers))

    def vectors(
        self, texts: Iterable[Text], pool: str | None = None, layer: int = -1,
        normalize: bool | None = None, windows: str | None = None,
    ) -> np.ndarray:
        """One vector a text: [texts, hidden_size] float32; NaN for what is no text.

        Args:
          texts: texts or pairs.
          pool: 'mean' or 'max' over all tokens, [CLS] and [SEP] among them, or 'cls', the hidden
            state of [CLS] (before the pooler); default: as in the `modules.json` of
            sentence-transformers beside the weights, else 'mean'.
          layer: as in `features`.
          normalize: whether vectors are brought to length 1; default: likewise, else not.
          windows: as in `classify`.
        """
        vectors = list(self.iter_vectors(texts, pool, layer, normalize, windows))
        return np.stack(vectors) if vectors else np.zeros((0, self.config.hidden_size), np.float32)

    def classify(
        self, texts: Iterable[Text], windows: str | None = None
    ) -> list[dict[str, Any]]:
        """Labels of texts or pairs; values (regression); or which end fits (multiple choice).

        Args:
          texts: texts or pairs (first, second), as the model was trained on; for multiple choice
            (beginning, end, end, ...).
          windows: what becomes of a text that is longer than the model takes: 'first', it is cut;
            'mean' or 'max', it is read in windows that overlap by half (of a pair the longer one
            is, beside the other), and the mean of their probabilities or values, weighted by
            tokens, or the largest of each is taken; default: as the run had it, else 'first'.

        Returns:
          A text: its 'text', or 'first' and 'second', with 'label', 'probability' and
          'probabilities' by label; with 'labels', those above 0.5, and 'probabilities', where a
          text may have several; or with 'value'; or 'text', 'choices', 'choice' (its place from
          0), 'probability' and 'probabilities'.
        """
        return list(self.iter_classify(texts, windows))

    def answer(
        self, questions: Iterable[Pair], max_answer_length: int = 30,
        null_threshold: float | None = None,
    ) -> list[dict[str, Any]]:
        """The span of a context that answers a question, as the evaluation on SQuAD finds it.

        Args:
          questions: (question, context). Long contexts are read in windows, as the run was
            evaluated; by default of 384 tokens, 128 apart.
          max_answer_length: tokens of an answer.
          null_threshold: '' is an answer too, where its score is above that of all others by more
            than this; default: the threshold of the model's run, if it was of SQuAD 2.0, else
            never.

        Returns:
          A question: {'question', 'answer', 'start', 'end', 'score', 'probability'}; the answer is
          context[start:end], the score the sum of the logits of its first and last token, the
          probability that among the best 20 answers.
        """
        return list(self.iter_answer(questions, max_answer_length, null_threshold))

    def tag(self, texts: Iterable[Text]) -> list[dict[str, Any]]:
        """A label for each word, decided by its first piece, and the entities that labels make.

        Texts that are longer than the model takes are read in windows that overlap by half.

        Args:
          texts: texts, whose words stand between white space, or lists of words.

        Returns:
          A text: {'text', 'tags': [{'word', 'label', 'probability', 'start', 'end'}, ...],
          'entities': [{'text', 'label', 'start', 'end', 'probability'}, ...]}; start and end are
          characters of the text (of a list: its words joined by spaces), an entity's probability
          that of its least likely word.
        """
        return list(self.iter_tag(texts))

    def warm_up(self, command: str | None = None, texts: Iterable[Any] | None = None) -> None:
        """Compiles what the first calls would wait for: a short text, and as many as fill a step.

        Args:
          command: such as 'classify' or 'vectors'; default: the first that the model serves.
          texts: like those that will come; default: made up.

        Raises:
          InputError: there is no such command.
        """
        command = self.commands()[0] if command is None else command
        run = getattr(self, f"iter_{str(command).replace('-', '_')}", None)
        if run is None:
            raise InputError(f'there is no command {command!r} to warm up')
        text: Any = '[MASK] a'
        if command in ('next-sentence', 'next_sentence', 'answer'):
            text = ('a', 'a')
        elif self.weights.head == 'multiple_choice':
            text = ('a', 'a', 'a')
        made = list(texts or ()) or [text]
        few = self.engine.tokens_a_step // 8
        for some in ([made[0]], [made[i % len(made)] for i in range(few)]):
            for _ in run(some):
                pass
