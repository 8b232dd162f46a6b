"""A model to use: each command as a method."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ParamSpec, TypeVar

import numpy as np

from bert_jax.predict.answers import Answer
from bert_jax.predict.loaded import LoadedModel
from bert_jax.predict.masked_words import FillMask, Score
from bert_jax.predict.stream import Result, Text, stream
from bert_jax.predict.tags import Tag
from bert_jax.predict.texts import NextSentence, Rerank, classify_job
from bert_jax.predict.vectors import Features, Vectors

_P = ParamSpec('_P')
_T = TypeVar('_T')


def _listed(iterate: Callable[_P, Iterator[_T]]) -> Callable[_P, list[_T]]:
    """A function that returns a generator's results as a list."""
    @functools.wraps(iterate)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> list[_T]:
        return list(iterate(*args, **kwargs))

    return run


class Model(LoadedModel):
    """A model to use; `bert_jax.predict.load` makes one.

    Every method takes texts in any number and order and returns one result for each, in that
    order. `iter_...` is the same as a generator: the texts may be an endless stream, results follow
    a few chunks of texts behind, and memory use stays constant. Texts are packed into rows of a few
    fixed shapes, so a second call compiles nothing new unless its texts have other lengths.

    A text that cannot be read (an empty one, a number) affects no other: its result has the reason
    in 'error'. Notes (a text was too long, ...) are warnings, or go to `note` if that is set. Bad
    arguments raise a `bert_jax.runtime.errors.InputError`, which is a ValueError.
    """

    def iter_fill_mask(self, texts: Iterable[Text], top_k: int = 5) -> Iterator[Result]:
        """The likeliest tokens for each [MASK] in a text.

        Args:
          texts: each with one [MASK] or more, which may also be written as the tokenizer calls it.
            If a text is longer than the model takes, each [MASK] sees only the tokens around it.
          top_k: number of predictions for each [MASK].

        Returns:
          For each text: {'text', 'predictions': [{'token', 'id', 'probability', 'sequence'}, ...]},
          likeliest first; 'sequence' is the text with the token put in. With several [MASK],
          'predictions' is a list of such lists, one for each.
        """
        return stream(self, texts, FillMask(self, top_k))

    def iter_next_sentence(self, pairs: Iterable[Text]) -> Iterator[Result]:
        """The probability that the second text of a pair follows the first in a document.

        Args:
          pairs: (first, second).

        Returns:
          For each pair: {'first', 'second', 'probability'}.
        """
        return stream(self, pairs, NextSentence(self))

    def iter_score(self, texts: Iterable[Text]) -> Iterator[Result]:
        """Pseudo-log-likelihood: each token is masked in turn and its log probability summed.

        Salazar et al., 2020, "Masked Language Model Scoring". If a text is longer than the model
        takes, each token sees only those around it.

        Returns:
          For each text: {'text', 'num_tokens', 'log_probability', 'pseudo_perplexity'}, the last
          being exp(-log_probability / num_tokens). For a corpus, sum both over its texts first.
        """
        return stream(self, texts, Score(self))

    def iter_classify(
        self, texts: Iterable[Text], windows: str | None = None, any_form: bool = False
    ) -> Iterator[Result]:
        """Labels of texts or pairs; values (regression); or which ending fits (multiple choice).

        Args:
          texts: texts or pairs (first, second), as the model was trained on; for multiple choice
            (beginning, ending, ending, ...).
          windows: what happens to a text that is longer than the model takes. 'first': it is cut.
            'mean', 'max': it is read in windows that overlap by half (of a pair, the longer text
            is, with the shorter one in each window), and the mean of their probabilities or values,
            weighted by tokens, or the largest of each is taken. Default: as in the run, else
            'first'.
          any_form: whether a model that was trained on pairs takes single texts too, or one of
            single texts pairs; else these get an error. (Models made elsewhere do not say which
            they take.)

        Returns:
          For each text: its 'text', or 'first' and 'second', with 'label', 'probability' and
          'probabilities' by label; or, from a multi-label model, with 'labels', those with a
          probability above 0.5, and 'probabilities'; or, from regression, with 'value' (of a
          cross-encoder, after the activation that its folder names). From multiple choice: 'text',
          'choices', 'choice' (its index), 'probability' and 'probabilities'.
        """
        return stream(self, texts, classify_job(self, windows, any_form))

    def iter_rerank(self, texts: Iterable[Text]) -> Iterator[Result]:
        """The documents of a query, ranked by a model of pairs with one value: a cross-encoder.

        Args:
          texts: (query, document, document, ...).

        Returns:
          For each: {'query', 'ranking': [{'index', 'score', 'text'}, ...]}, the highest score
          first, 'index' counting the documents from 0. Scores are values of `classify`.
        """
        return stream(self, texts, Rerank(self))

    def iter_answer(
        self, questions: Iterable[Text], max_answer_length: int = 30,
        null_threshold: float | None = None,
    ) -> Iterator[Result]:
        """The span of a context that answers a question, as the evaluation on SQuAD finds it.

        Args:
          questions: (question, context). Long contexts are read in windows, as in the run's
            evaluation; by default of 384 tokens, 128 apart.
          max_answer_length: the most tokens of an answer.
          null_threshold: '' is the answer if its score exceeds that of every other answer by more
            than this; default: the threshold that the model's SQuAD 2.0 run found, else '' is never
            given.

        Returns:
          For each question: {'question', 'answer', 'start', 'end', 'score', 'probability'}; the
          answer is context[start:end], its score the sum of the logits of its first and last token,
          and its probability that among the best 20 answers.
        """
        return stream(self, questions, Answer(self, max_answer_length, null_threshold))

    def iter_tag(
        self, texts: Iterable[Text], aggregation: str = 'first'
    ) -> Iterator[Result]:
        """A label for each word, predicted at its first piece, and the entities that they form.

        Texts longer than the model takes are read in windows that overlap by half or more.

        Args:
          texts: texts, which are split into words as the tokenizer does it (at white space and
            punctuation marks; an ideograph is a word), or lists of words, which stay as they are.
          aggregation: 'first', or 'simple': every token of a text is labelled by itself, and is
            what is called a word here. By these names transformers' pipeline has the same
            entities.

        Returns:
          For each text: {'text', 'tags': [{'word', 'label', 'probability', 'start', 'end'}, ...],
          'entities': [{'text', 'label', 'start', 'end', 'probability'}, ...]}; start and end count
          characters of the text (of a list: of its words joined by spaces), and an entity's
          probability is that of its least likely word.
        """
        return stream(self, texts, Tag(self, aggregation))

    def iter_features(
        self, texts: Iterable[Text], layers: Sequence[int] = (-1,)
    ) -> Iterator[Result]:
        """Hidden states of every token, [CLS] and [SEP] among them.

        Args:
          texts: texts or pairs; those longer than the model takes are cut.
          layers: counted from the top: -1 is the last layer, -num_layers the first, and
            -num_layers - 1 the embeddings.

        Returns:
          For each text: {'tokens': n strings, 'values': [n, layers, H] float32}, for n tokens and a
          hidden size of H.
        """
        return stream(self, texts, Features(self, layers))

    def iter_vectors(
        self, texts: Iterable[Text], pool: str | None = None, layer: int = -1,
        normalize: bool | None = None, windows: str | None = None, prompt: str | None = None,
    ) -> Iterator[np.ndarray]:
        """A vector [H] float32 for each text, NaN if it cannot be read; see `vectors`."""
        return stream(self, texts, Vectors(self, pool, layer, normalize, windows, prompt))

    fill_mask = _listed(iter_fill_mask)
    next_sentence = _listed(iter_next_sentence)
    score = _listed(iter_score)
    classify = _listed(iter_classify)
    rerank = _listed(iter_rerank)
    answer = _listed(iter_answer)
    tag = _listed(iter_tag)
    features = _listed(iter_features)

    def vectors(
        self, texts: Iterable[Text], pool: str | None = None, layer: int = -1,
        normalize: bool | None = None, windows: str | None = None, prompt: str | None = None,
    ) -> np.ndarray:
        """One vector per text: [texts, H] float32; NaN for a text that cannot be read.

        H is the hidden size, or the `truncate_dim` of a folder of sentence-transformers.

        Args:
          texts: texts or pairs.
          pool: 'mean' or 'max' over all tokens, [CLS] and [SEP] among them, or 'cls', the hidden
            state of [CLS] (before the pooler); default: as in the `modules.json` of
            sentence-transformers beside the weights, else 'mean'.
          layer: as in `features`.
          normalize: whether vectors are scaled to length 1; default: as in that file, else not.
          windows: as in `classify`.
          prompt: name of the model's prompt that stands before each text, such as 'query' or
            'document'; default: the one that its folder names as the default, else none.
        """
        vectors = list(self.iter_vectors(texts, pool, layer, normalize, windows, prompt))
        if not vectors:
            return np.zeros((0, self.vector_size), np.float32)
        return np.stack(vectors)
