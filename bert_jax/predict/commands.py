"""The commands: fill-mask, score, next-sentence, classify, answer, tag.

Each yields one result a text, in the order of the texts. A text that cannot be read has an error as
its result and affects no other.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.pairs import Sequences, joined, make_sequences
from bert_jax.heads import HEADS
from bert_jax.heads.classification import MultipleChoice, softmax
from bert_jax.predict import functions
from bert_jax.predict.engine import Function, Outputs
from bert_jax.predict.loaded import LoadedModel
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.packing import Units
from bert_jax.tasks.squad import predict_answers
from bert_jax.tasks.squad_windows import SquadExamples, SquadWindows, squad_windows
from bert_jax.tasks.tagging import (
    ConllExamples,
    ConllWindows,
    are_entities,
    conll_windows,
    normal_tags,
)
from bert_jax.tasks.texts import TextWindows, text_windows
from bert_jax.text.sentencepiece import WORD_START
from bert_jax.text.vocab import CONTINUATION, MASK, Vocab
from bert_jax.text.wordpiece import raw_words

# One text, or several that go together: a pair; a beginning and its possible ends. An exception in
# place of a text becomes its result.
Text = str | Sequence[str] | Exception
Single = str | Exception
Pair = Sequence[str] | Exception
Note = Callable[[str], None]
# From a text, its number from 1 and where to put remarks, to whatever `make` takes.
Read = Callable[[Any, int, Note], Any]

_CHUNK_STEPS = 8  # of the engine: what is made ready at a time,
_CHUNK_VALUES = 1 << 27  # and at most this many result values
_CHARACTERS = 4  # of a token, more or less

NONE = Units(Sequences(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int64)))


def check_many(texts: Iterable[Any]) -> None:
    """Refuses one text, whose letters would be texts."""
    if isinstance(texts, (str, bytes)):
        raise InputError(f'one text where a list of texts is expected: write [{texts[:40]!r}]')
    if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
        raise InputError(
            f'{texts!r:.60} ({type(texts).__name__}) where a list of texts is expected')


def check_count(name: str, value: Any) -> int:
    """The value of an argument; InputError where it is no whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise InputError(f'{name}={value!r:.60} must be 1 or more, a whole number')
    return int(value)


def _chunks(
    texts: Iterable[Any], size: Callable[[Any], int], limit: int
) -> Iterator[tuple[int, list[Any]]]:
    """(number of the first, consecutive texts), of about `limit` tokens together."""
    chunk: list[Any] = []
    number = tokens = 0
    for number, text in enumerate(texts, 1):
        chunk.append(text)
        tokens += size(text)
        if tokens >= limit:
            yield number + 1 - len(chunk), chunk
            chunk, tokens = [], 0
    if chunk:
        yield number + 1 - len(chunk), chunk


def num_tokens(text: Any) -> int:
    """An estimate of the tokens in a text, a pair or anything else."""
    if isinstance(text, str):
        return 2 + len(text) // _CHARACTERS
    if isinstance(text, Sequence):
        return sum(map(num_tokens, text))
    return 1


def refused(text: Any, reason: str) -> dict[str, Any]:
    """The result of a text, or of several that go together, that cannot be read."""
    return shown(text) | {'error': reason}


def shown(text: Any) -> dict[str, Any]:
    """A text, or several that go together, as a result shows them."""
    if isinstance(text, str):
        return {'text': text}
    if not isinstance(text, Sequence) or not all(isinstance(part, str) for part in text):
        return {'text': None if isinstance(text, Exception) else repr(text)}
    if len(text) == 2:
        return {'first': text[0], 'second': text[1]}
    return {'text': text[0] if len(text) == 1 else list(text)}


def parts_of(text: Any, *allowed: int) -> list[str]:
    """The texts that go together.

    Args:
      text: one text or several.
      allowed: how many there may be; none: any number.

    Raises:
      InputError: it is no text, or there is another number of them.
    """
    parts = [text] if isinstance(text, str) else text
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise InputError(f'{text!r:.60} is no text: a str, or a tuple of them, is expected')
    if allowed and len(parts) not in allowed:
        wanted = ' or '.join(('one text', 'two texts')[n - 1] for n in allowed)
        raise InputError(f'it has {len(parts)} parts: {wanted} expected')
    return list(parts)


def stream(
    model: LoadedModel, texts: Iterable[Any], *, read: Read,
    make: Callable[[list[Any]], tuple[Any, Units]], function: Function,
    results: Callable[[Any, Outputs], Iterable[Any]],
    refused: Callable[[Any, str], Any] = refused, size: Callable[[Any], int] = num_tokens,
    values_per_token: int = 1,
) -> Iterator[Any]:
    """One result a text, in order; memory does not grow with their number.

    Args:
      model: whose engine computes.
      texts: any iterable; it is read a few chunks ahead, in the caller's thread.
      read: tokenizes a text, in another thread; what it raises is the text's result.
      make: units of what was read of consecutive texts, and (not None) what `results` needs.
      function: what is computed of the units.
      results: of what `make` gave and the outputs, one for each text.
      refused: the result of a text (or an error) that could not be read, from the reason.
      size: tokens of the units of a text, more or less.
      values_per_token: numbers that `function` gives a token, which bounds what is in memory.

    Raises:
      InputError: `texts` is one text.
    """
    check_many(texts)
    engine = model.engine
    limit = min(_CHUNK_STEPS * engine.tokens_a_step, _CHUNK_VALUES // values_per_token)

    def attempt(text: Any, number: int, note: Note) -> Any:
        try:
            return text if isinstance(text, Exception) else read(text, number, note)
        except Exception as error:  # of any type: the other texts have their results
            return error

    def prepare(chunk: tuple[int, list[Any]]) -> tuple[Any, Units]:
        first, members = chunk
        notes: list[str] = []
        result = [attempt(text, first + i, notes.append) for i, text in enumerate(members)]
        good = [x for x in result if not isinstance(x, Exception)]
        made, units = make(good) if good else (None, NONE)
        return (members, result, made, notes), units

    def answers() -> Iterator[Any]:
        chunks = _chunks(texts, size, limit)
        for (members, read, made, notes), outputs in engine.stream(
                function, model.device_params, chunks, prepare):
            for note in notes:
                model.note(note)
            result = iter(() if made is None else results(made, outputs))
            for text, x in zip(members, read, strict=True):
                if isinstance(x, InputError):
                    yield refused(text, str(x))
                elif isinstance(x, Exception):
                    yield refused(text, f'{type(x).__name__}: {x}')
                else:
                    yield next(result)

    return answers()


class _Masked(NamedTuple):
    """A text with some tokens masked, each in another sequence.

    Attributes:
      text: the whole text.
      ids: the sequences.
      places: of the masked token in each.
      targets: the tokens that stood there.
    """

    text: str
    ids: list[list[int]]
    places: list[int]
    targets: list[int]


def _masked(model: LoadedModel, text: str, ids: list[int], places: Sequence[int]) -> _Masked:
    """A sequence for each place: the tokens around it, as many as the model takes.

    The place is in the middle, except near an end of the text.
    """
    size = model.max_length - 2
    begins = [max(0, min(place - size // 2, len(ids) - size)) for place in places]
    inside = [place - begin for place, begin in zip(places, begins, strict=True)]
    windows = [ids[begin : begin + size] for begin in begins]
    for window, place in zip(windows, inside, strict=True):
        window[place] = model.vocab.mask_id
    return _Masked(text, windows, inside, [ids[place] for place in places])


def _masked_units(model: LoadedModel, texts: list[_Masked]) -> tuple[list[_Masked], Units]:
    sequences = make_sequences(
        joined([ids for text in texts for ids in text.ids]), None,
        max_length=model.max_length, **model.vocab.ends,
    )
    places = np.array([place for text in texts for place in text.places], np.int64)
    targets = np.array([target for text in texts for target in text.targets], np.int32)
    return texts, Units(
        sequences, labels={'targets': targets}, positions={'masked_positions': 1 + places}
    )


def fill_mask(
    model: LoadedModel, texts: Iterable[Single], top_k: int = 5
) -> Iterator[dict[str, Any]]:
    """The likeliest tokens for each [MASK]; see `Model.fill_mask`."""
    model.need('fill-mask')
    top_k = check_count('top_k', top_k)
    vocab = model.vocab

    def read(text: Any, number: int, note: Note) -> _Masked:
        (text,) = parts_of(text, 1)
        model.encode(text)  # refuses empty ones
        ids: list[int] = []
        masks = []
        for i, part in enumerate(text.split(MASK)):
            if i:
                masks.append(len(ids))
                ids.append(vocab.mask_id)
            ids += model.tokenizer.encode(part)
        if not masks:
            raise InputError(
                f'it has no {MASK}: write {MASK} where a word is to be filled in ({text[:60]!r})'
            )
        size = model.max_length - 2
        if len(ids) > size:
            note(
                f'text {number} has {len(ids)} tokens, the model takes {size}: each {MASK} is '
                f'filled in from the {size} tokens around it'
            )
        return _masked(model, text, ids, masks)

    def results(texts: list[_Masked], outputs: Outputs) -> Iterator[dict[str, Any]]:
        of_masks = zip(outputs['probabilities'].tolist(), outputs['ids'].tolist(), strict=True)
        for text in texts:
            predictions = [
                [
                    {
                        'token': _name(vocab, i), 'id': i, 'probability': probability,
                        'sequence': _with_token(text.text, number, vocab, i),
                    }
                    for probability, i in zip(*next(of_masks), strict=True)
                ]
                for number in range(len(text.ids))
            ]
            yield {
                'text': text.text,
                'predictions': predictions if len(predictions) > 1 else predictions[0],
            }

    return stream(
        model, texts, read=read, make=lambda texts: _masked_units(model, texts), results=results,
        function=functions.masked_lm_top(model.config, min(top_k, model.config.vocab_size)),
    )


def _name(vocab: Vocab, i: int) -> str:
    """The token; an embedding may have more rows than the vocabulary has tokens."""
    return vocab.tokens[i] if i < len(vocab) else f'[unused row {i}]'


def _with_token(text: str, number: int, vocab: Vocab, i: int) -> str:
    """The text with its mask `number` replaced; a continuation is joined to the word before."""
    parts = text.split(MASK)
    before, after = MASK.join(parts[: number + 1]), MASK.join(parts[number + 1 :])
    token = _name(vocab, i).removeprefix(WORD_START)
    if i < len(vocab) and vocab.is_continuation[i]:
        return before.rstrip() + token.removeprefix(CONTINUATION) + after
    return before + token + after


def score(model: LoadedModel, texts: Iterable[Single]) -> Iterator[dict[str, Any]]:
    """Pseudo-log-likelihoods; see `Model.score`."""
    model.need('score')

    def read(text: Any, number: int, note: Note) -> _Masked:
        (text,) = parts_of(text, 1)
        ids = model.encode(text)
        return _masked(model, text, ids, range(len(ids)))

    def results(texts: list[_Masked], outputs: Outputs) -> Iterator[dict[str, Any]]:
        bounds = np.cumsum([len(text.ids) for text in texts])[:-1]
        for text, logs in zip(texts, np.split(outputs['log_probability'], bounds), strict=True):
            total = math.fsum(logs.tolist())
            yield {
                'text': text.text, 'num_tokens': len(logs), 'log_probability': total,
                'pseudo_perplexity': pseudo_perplexity(total, len(logs)),
            }

    def size(text: Any) -> int:
        return num_tokens(text) * min(num_tokens(text), model.max_length)

    return stream(
        model, texts, read=read, make=lambda texts: _masked_units(model, texts), results=results,
        function=functions.masked_lm_log_probability(model.config), size=size,
    )


def pseudo_perplexity(log_probability: float, num_tokens: int) -> float:
    """exp of minus the mean log probability of a token (Salazar et al., 2020, section 2.3)."""
    return math.exp(min(-log_probability / max(num_tokens, 1), 700.0))


class Tokenized(NamedTuple):
    """Texts that go together, and the pieces of each."""

    texts: list[str]
    ids: list[list[int]]


Made = tuple[list[Tokenized], TextWindows]


def next_sentence(model: LoadedModel, pairs: Iterable[Pair]) -> Iterator[dict[str, Any]]:
    """The probability that B follows A; see `Model.next_sentence`."""
    model.need('next-sentence')

    def results(made: Made, outputs: Outputs) -> Iterator[dict[str, Any]]:
        for pair, of_pair in zip(made[0], softmax(outputs['logits']).tolist(), strict=True):
            yield shown(pair.texts) | {'probability': of_pair[0]}

    return stream(
        model, pairs, read=reader(model, 2), make=maker(model), results=results,
        function=functions.next_sentence(model.config),
    )


def classify(
    model: LoadedModel, texts: Iterable[Text], windows: str | None = None
) -> Iterator[dict[str, Any]]:
    """Labels of texts or pairs, values, or choices; see `Model.classify`."""
    model.need('classify')
    head, labels = HEADS[model.weights.head], model.weights.labels
    if head is MultipleChoice:
        if windows is not None:
            raise InputError(f'windows={windows!r}: beginnings and ends are cut, not read in parts')
        return _choose(model, texts)
    how = model.windows(windows)

    def results(made: Made, outputs: Outputs) -> Iterator[dict[str, Any]]:
        texts, read = made
        logits = read.combined_logits(head, outputs['logits']).astype(np.float64)
        for text, result in zip(texts, head.described(logits, labels), strict=True):
            yield shown(text.texts) | result

    return stream(
        model, texts, read=reader(model, 1, 2, how=how), make=maker(model, how), results=results,
        function=model.objective.outputs,
    )


def _choose(model: LoadedModel, texts: Iterable[Text]) -> Iterator[dict[str, Any]]:
    """Which end goes with a beginning: each of them is a pair, a unit by itself."""
    pair = reader(model, 2)

    def read(text: Text, number: int, note: Note) -> list[Tokenized]:
        parts = parts_of(text)
        if len(parts) < 3:
            raise InputError('it has no choices: a beginning and two or more ends of it expected')
        return [pair((parts[0], end), number, note) for end in parts[1:]]

    def make(texts: list[list[Tokenized]]) -> tuple[list[list[Tokenized]], Units]:
        _, units = maker(model)([pair for text in texts for pair in text])
        return texts, units

    def results(texts: list[list[Tokenized]], outputs: Outputs) -> Iterator[dict[str, Any]]:
        bounds = np.cumsum([len(text) for text in texts])[:-1]
        for text, logits in zip(texts, np.split(outputs['logits'][:, 0], bounds), strict=True):
            probabilities = softmax(logits).tolist()
            best = int(logits.argmax())
            yield {
                'text': text[0].texts[0], 'choices': [pair.texts[1] for pair in text],
                'choice': best, 'probability': probabilities[best],
                'probabilities': probabilities,
            }

    return stream(
        model, texts, read=read, make=make, results=results, function=model.objective.outputs)


def reader(
    model: LoadedModel, *allowed: int, empty: bool = False, how: str = 'first'
) -> Callable[[Any, int, Note], Tokenized]:
    """Tokenizes a text or several that go together; remarks on what will be cut.

    Args:
      model: its longest sequence is the limit.
      allowed: how many texts there may be in one.
      empty: whether a text without words is one.
      how: one of `text_windows.WINDOWS`.
    """
    def read(text: Any, number: int, note: Note) -> Tokenized:
        parts = parts_of(text, *allowed)
        ids = [(model.tokenizer.encode if empty else model.encode)(part) for part in parts]
        total, budget = sum(map(len, ids)), model.max_length - 1 - len(ids)
        if total > budget and how == 'first':
            note(f'text {number} has {total} tokens, the model takes {budget}: its end is left out')
        return Tokenized(parts, ids)

    return read


def maker(
    model: LoadedModel, how: str = 'first'
) -> Callable[[list[Tokenized]], tuple[Made, Units]]:
    """Units of single texts and pairs, in their order."""
    def make(texts: list[Tokenized]) -> tuple[Made, Units]:
        firsts = joined([text.ids[0] for text in texts])
        limits: Any = {'max_length': model.max_length, **model.vocab.ends}
        is_pair = np.array([len(text.ids) == 2 for text in texts])
        if not is_pair.any():
            read = text_windows(firsts, None, how, **limits)
            return (texts, read), Units(read.sequences)
        seconds = joined([text.ids[1] if len(text.ids) == 2 else () for text in texts])
        read = text_windows(firsts, seconds, how, **limits)
        if not is_pair.all():
            read = _chosen(text_windows(firsts, None, how, **limits), read, is_pair)
        return (texts, read), Units(read.sequences)

    return make


def _chosen(first: TextWindows, second: TextWindows, from_second: np.ndarray) -> TextWindows:
    """Text by text the windows of the first or of the second."""
    windows = sorted(
        (text, i, x.sequences) for x, chosen in ((first, ~from_second), (second, from_second))
        for i, text in enumerate(x.text.tolist()) if chosen[text]
    )
    ids = [x.ids[x.offsets[i] : x.offsets[i + 1]] for _, i, x in windows]
    sequences = Sequences(
        np.concatenate(ids), np.concatenate([[0], np.cumsum([len(x) for x in ids])]),
        np.array([x.first_lengths[i] for _, i, x in windows]),
    )
    return TextWindows(sequences, np.array([text for text, _, _ in windows]), first.how)


# As google-research/bert's run_squad has them, where the model has no settings.
_DEFAULTS = {'max_seq_length': 384, 'doc_stride': 128, 'max_query_length': 64}


def answer(
    model: LoadedModel, questions: Iterable[Pair], max_answer_length: int = 30,
    null_threshold: float | None = None,
) -> Iterator[dict[str, Any]]:
    """The best span of each context; see `Model.answer`."""
    model.need('answer')
    check_many(questions)
    max_answer_length = check_count('max_answer_length', max_answer_length)
    if null_threshold is not None and (
            isinstance(null_threshold, bool) or not isinstance(null_threshold, numbers.Real)
            or math.isnan(null_threshold)):
        raise InputError(f'null_threshold={null_threshold!r:.60} must be a number')
    defaults = _DEFAULTS | dict(model.weights.inference)
    threshold = defaults.get('null_threshold') if null_threshold is None else null_threshold
    max_length = min(defaults['max_seq_length'], model.max_length)
    # As evaluation cuts it; where the model is too short for that, a token of the text is left.
    max_question = min(defaults['max_query_length'], max_length - 4)

    def read(pair: Any, number: int, note: Note) -> list[str]:
        if isinstance(pair, str) or len(parts := parts_of(pair)) != 2:
            raise InputError('a question must come with one context')
        lengths = [len(model.tokenizer.encode(text)) for text in parts]
        for name, length in zip(('question', 'context'), lengths, strict=True):
            if not length:
                raise InputError(f'the {name} is empty: a word or more is needed')
        if lengths[0] > max_question:
            note(f'question {number} has {lengths[0]} tokens: its end is left out, after '
                 f'{max_question}')
        return parts

    def make(asked: list[list[str]]) -> tuple[tuple[SquadExamples, SquadWindows], Units]:
        questions, contexts = zip(*asked, strict=True)
        places = {context: i for i, context in enumerate(dict.fromkeys(contexts))}
        examples = SquadExamples(
            ids=tuple(map(str, range(len(asked)))), questions=questions, contexts=tuple(places),
            context_index=np.array([places[context] for context in contexts], np.int32),
            answers=(None,) * len(asked),
        )
        windows = squad_windows(
            examples, model.encode_all, **model.vocab.ends, max_length=max_length,
            doc_stride=defaults['doc_stride'], max_question_length=max_question, training=False,
        )
        return (examples, windows), Units(windows.sequences)

    def results(
        made: tuple[SquadExamples, SquadWindows], outputs: Outputs
    ) -> Iterator[dict[str, Any]]:
        examples, windows = made
        predictions = predict_answers(
            examples, windows, outputs['start_logits'], outputs['end_logits'], vocab=model.vocab,
            lowercase=model.weights.lowercase, switches=model.tokenizer.switches,
            version='v1' if threshold is None else 'v2', max_answer_length=max_answer_length,
        )
        for question, context, result in zip(
            examples.questions, examples.context_index, predictions, strict=True
        ):
            is_empty = threshold is not None and result.null_odds > threshold
            i = [x.text for x in result.n_best].index('' if is_empty else result.text)
            best, (begin, end) = result.n_best[i], result.places[i]
            yield {
                'question': question, 'answer': examples.contexts[context][begin:end],
                'start': begin, 'end': end, 'score': best.start_logit + best.end_logit,
                'probability': best.probability,
            }

    def refused(pair: Any, reason: str) -> dict[str, Any]:
        return {'question': shown(pair).get('first'), 'answer': '', 'error': reason}

    return stream(
        model, questions, read=read, make=make, results=results,
        function=model.objective.outputs, refused=refused,
    )


Words = tuple[str, list[str], list[int]]  # a text, its words, their first characters in it


def tag(model: LoadedModel, texts: Iterable[Text]) -> Iterator[dict[str, Any]]:
    """A label for each word, and entities; see `Model.tag`."""
    model.need('tag')
    labels = model.weights.labels

    def read(text: Any, number: int, note: Note) -> Words:
        result = _words(text)
        for word in result[1]:
            model.tokenizer.encode(word)  # an error is this text's result
        return result

    def make(texts: list[Words]) -> tuple[tuple[list[Words], ConllWindows], Units]:
        words = [word for _, of_text, _ in texts for word in of_text]
        offsets = np.cumsum([0, *(len(of_text) for _, of_text, _ in texts if of_text)])
        spans = np.arange(len(offsets) - 1)
        examples = ConllExamples(
            words=words, tags=[labels[0]] * len(words), lines=np.arange(len(words)),
            sentence_offsets=offsets, documents=spans, source='texts',
        )
        windows = conll_windows(
            examples, model.encode_all, labels, max_length=model.max_length,
            document_context=False, **model.vocab.ends, unk_id=model.vocab.unk_id,
        )
        return (texts, windows), Units(windows.sequences)

    def results(
        made: tuple[list[Words], ConllWindows], outputs: Outputs
    ) -> Iterator[dict[str, Any]]:
        texts, windows = made
        places = np.flatnonzero(windows.word_index >= 0)
        logits = np.empty((len(places), len(labels)))
        if len(places):
            logits[windows.word_index[places]] = outputs['logits'][places]
        bounds = np.cumsum([len(words) for _, words, _ in texts])[:-1]
        for (text, words, begins), of_text in zip(texts, np.split(logits, bounds), strict=True):
            probabilities = softmax(of_text)
            tags = [
                {
                    'word': word, 'label': labels[i], 'probability': float(row[i]), 'start': begin,
                    'end': begin + len(word),
                }
                for word, begin, row, i in zip(
                    words, begins, probabilities, probabilities.argmax(axis=1).tolist(),
                    strict=True)
            ]
            yield {'text': text, 'tags': tags, 'entities': entities(text, tags, labels)}

    return stream(
        model, texts, read=read, make=make, results=results,
        function=model.objective.outputs,
        refused=lambda text, reason: {
            'text': shown(text).get('text'), 'tags': [], 'entities': [], 'error': reason},
    )


def _words(text: Any) -> Words:
    if isinstance(text, str):
        words, begins, at = raw_words(text), [], 0
        for word in words:
            at = text.index(word, at)
            begins.append(at)
            at += len(word)
        return text, words, begins
    if not isinstance(text, Sequence) or not all(isinstance(word, str) for word in text):
        raise InputError(f'{text!r:.60} is no text: a str, or a list of words, is expected')
    ends = np.cumsum([len(word) + 1 for word in text]).tolist()
    return ' '.join(text), list(text), [0, *ends][: len(text)]


def entities(
    text: str, tags: Sequence[dict[str, Any]], labels: Sequence[str]
) -> list[dict[str, Any]]:
    """Words that belong together by their labels, as the evaluation counts them.

    Args:
      text: which the words are of.
      tags: of the words, as `Model.tag` gives them.
      labels: all that there are; those of no scheme of entities (parts of speech) make none.
    """
    if not are_entities(labels):
        return []
    result: list[dict[str, Any]] = []
    in_iob2 = normal_tags([x['label'] for x in tags], np.array([0, len(tags)]))
    for word, label in zip(tags, in_iob2, strict=True):
        if label == 'O':
            continue
        if label.startswith('B-'):
            result.append({'label': label[2:], 'start': word['start'], 'probability': 1.0})
        entity = result[-1]
        entity |= {
            'text': text[entity['start'] : word['end']], 'end': word['end'],
            'probability': min(entity['probability'], word['probability']),
        }
    return result
