"""The commands fill-mask, score, next-sentence, classify, answer, tag and features, and `Model`.

Each yields one result per text, in the order of the texts. A text that cannot be read has an error
as its result and affects no other. A command gives `LoadedModel.stream` four functions: one reads a
text, one makes units, a jitted one computes packed batches, and one turns its outputs into results.

    H: hidden_size, n: tokens of a text, T: tokens of all windows
"""

import functools
import itertools
import math
import numbers
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from bert_jax.data.packing import Units
from bert_jax.data.pairs import Sequences, TextWindows, joined, make_sequences, text_windows
from bert_jax.heads import HEADS
from bert_jax.heads.classification import MultipleChoice, softmax
from bert_jax.inference import engine
from bert_jax.inference.engine import Function, Outputs, bound
from bert_jax.predict import loaded
from bert_jax.predict.loaded import LoadedModel, Result, parts_of, shown
from bert_jax.predict.sentences import POOLS
from bert_jax.runtime.errors import InputError
from bert_jax.text.offsets import piece_places
from bert_jax.text.sentencepiece import WORD_START
from bert_jax.text.vocab import CONTINUATION, MASK, Vocab, unused_row
from bert_jax.text.wordpiece import raw_words

# One text, or several that belong together: a pair, or a beginning and its possible endings. An
# exception in place of a text becomes that text's result.
Text = str | Sequence[str] | Exception


def _count(name: str, value: Any) -> int:
    """Returns an argument's value; raises InputError unless it is a whole number of 1 or more."""
    if not isinstance(value, (int, np.integer)) or value < 1:
        raise InputError(f'{name}={value!r:.60} must be 1 or more, a whole number')
    return int(value)


# A text, and for each of its tokens to predict: a sequence with that token masked, the token's
# place in the sequence, and its id.
_Masked = tuple[str, list[tuple[list[int], int, int]]]


def _masked(model: LoadedModel, text: str, ids: list[int], places: Iterable[int]) -> _Masked:
    """For each place, the tokens around it, as many as the model takes, with the place masked.

    The place is in the middle, except near an end of the text.
    """
    size = model.max_length - 2
    result = []
    for place in places:
        begin = max(0, min(place - size // 2, len(ids) - size))
        window = ids[begin : begin + size]
        window[place - begin] = model.vocab.mask_id
        result.append((window, place - begin, ids[place]))
    return text, result


def _masked_units(model: LoadedModel, texts: list[_Masked]) -> tuple[None, Units]:
    ids, places, targets = zip(*itertools.chain(*(masked for _, masked in texts)), strict=True)
    sequences = make_sequences(joined(ids), None, max_length=model.max_length, **model.vocab.ends)
    return None, Units(sequences, labels={'targets': np.array(targets, np.int32)},
                       positions={'masked_positions': 1 + np.array(places)})


def fill_mask(model: LoadedModel, texts: Iterable[Text], top_k: int = 5) -> Iterator[Result]:
    """The likeliest tokens for each [MASK] in a text.

    Args:
      texts: each with one [MASK] or more. If a text is longer than the model takes, each [MASK]
        sees only the tokens around it.
      top_k: number of predictions for each [MASK].

    Returns:
      For each text: {'text', 'predictions': [{'token', 'id', 'probability', 'sequence'}, ...]},
      likeliest first; 'sequence' is the text with the token put in. With several [MASK],
      'predictions' is a list of such lists, one for each.
    """
    model.need('fill-mask')
    top_k = _count('top_k', top_k)
    vocab = model.vocab

    def read(text: Any, number: int) -> _Masked:
        (text,) = parts_of(text, 1)
        model.encode(text)  # raises if the text is empty
        parts = map(model.tokenizer.encode, text.split(MASK))
        ids = [i for part in parts for i in (*part, vocab.mask_id)][:-1]
        masks = [place for place, i in enumerate(ids) if i == vocab.mask_id]
        if not masks:
            raise InputError(
                f'it has no {MASK}: write {MASK} where a word is to be filled in ({text[:60]!r})')
        size = model.max_length - 2
        if len(ids) > size:
            model.note(f'text {number} has {len(ids)} tokens, the model takes {size}: each {MASK} '
                       f'is filled in from the {size} tokens around it')
        return _masked(model, text, ids, masks)

    def results(texts: list[_Masked], made: None, outputs: Outputs) -> Iterator[Result]:
        of_masks = zip(outputs['probabilities'].tolist(), outputs['ids'].tolist(), strict=True)
        for text, masked in texts:
            predictions = []
            for number in range(len(masked)):
                probabilities, ids = next(of_masks)
                predictions.append([
                    {'token': _name(vocab, i), 'id': i, 'probability': probability,
                     'sequence': _with_token(text, number, vocab, i)}
                    for probability, i in zip(probabilities, ids, strict=True)])
            yield {'text': text,
                   'predictions': predictions if len(predictions) > 1 else predictions[0]}

    num = min(top_k, model.config.vocab_size)
    return model.stream(
        texts, read=read, make=functools.partial(_masked_units, model), results=results,
        function=bound(engine.masked_lm_top, model.config, num), keys=('predictions',))


def _name(vocab: Vocab, i: int) -> str:
    """The token of an id; the embedding may have more rows than the vocabulary has tokens."""
    return vocab.tokens[i] if i < len(vocab) else unused_row(i)


def _with_token(text: str, number: int, vocab: Vocab, i: int) -> str:
    """The text with [MASK] `number`, from 0, replaced; a continuation joins the word before it."""
    parts = text.split(MASK)
    before, after = MASK.join(parts[: number + 1]), MASK.join(parts[number + 1 :])
    token = _name(vocab, i).removeprefix(WORD_START)
    if i < len(vocab) and vocab.is_continuation[i]:
        return before.rstrip() + token.removeprefix(CONTINUATION) + after
    return before + token + after


def score(model: LoadedModel, texts: Iterable[Text]) -> Iterator[Result]:
    """Pseudo-log-likelihood: each token is masked in turn and its log probability summed.

    Salazar et al., 2020, "Masked Language Model Scoring". If a text is longer than the model takes,
    each token sees only those around it.

    Returns:
      For each text: {'text', 'num_tokens', 'log_probability', 'pseudo_perplexity'}, the last being
      exp(-log_probability / num_tokens). For a corpus, sum both over its texts first.
    """
    model.need('score')

    def read(text: Any, number: int) -> _Masked:
        (text,) = parts_of(text, 1)
        ids = model.encode(text)
        return _masked(model, text, ids, range(len(ids)))

    def results(texts: list[_Masked], made: None, outputs: Outputs) -> Iterator[Result]:
        bounds = np.cumsum([len(masked) for _, masked in texts])[:-1]
        logs_of = np.split(outputs['log_probability'], bounds)
        for (text, _), logs in zip(texts, logs_of, strict=True):
            total = math.fsum(logs.tolist())
            yield {'text': text, 'num_tokens': len(logs), 'log_probability': total,
                   'pseudo_perplexity': pseudo_perplexity(total, len(logs))}

    return model.stream(
        texts, read=read, make=functools.partial(_masked_units, model), results=results,
        function=bound(engine.masked_lm_log_probability, model.config),
        keys=('num_tokens', 'log_probability', 'pseudo_perplexity'),
        size=lambda text: loaded.num_tokens(text) * min(loaded.num_tokens(text), model.max_length))


def pseudo_perplexity(log_probability: float, num_tokens: int) -> float:
    """The exponential of the negative mean log probability per token.

    Defined by Salazar et al., 2020, section 2.3.
    """
    return math.exp(min(-log_probability / max(num_tokens, 1), 700.0))


Tokenized = tuple[list[str], list[list[int]]]  # texts that belong together, token ids of each


def _tokenize(
    model: LoadedModel, text: Any, number: int, *, allowed: Sequence[int] = (2,),
    how: str = 'first', empty: bool = False,
    prepared: Callable[[Sequence[str]], Sequence[str]] = list,
) -> Tokenized:
    """Tokenizes a text, or several that belong together, and notes what will be cut.

    Args:
      model: its `max_length` is the limit.
      text, number: as for `read` of `LoadedModel.stream`.
      allowed: how many texts may belong together.
      how: one of `config.choices.WINDOWS`.
      empty: whether a text without words is accepted.
      prepared: what is done to the texts first.
    """
    parts = parts_of(text, *allowed)
    if len(parts) > 1:
        model.check_pair()
    encode = model.tokenizer.encode if empty else model.encode
    ids = [encode(part) for part in prepared(parts)]
    total, budget = sum(map(len, ids)), model.max_length - 1 - len(ids)
    if total > budget and how == 'first':
        model.note(
            f'text {number} has {total} tokens, the model takes {budget}: its end is left out')
    return parts, ids


def _text_units(
    model: LoadedModel, texts: list[Tokenized], how: str = 'first'
) -> tuple[TextWindows, Units]:
    """(Windows, units) of single texts and pairs, in the order of the texts."""
    found: list[Any] = []  # (text, ids, tokens of the first segment) of each window
    for num in {len(ids) for _, ids in texts}:  # 1: single texts, 2: pairs
        index = [i for i, (_, ids) in enumerate(texts) if len(ids) == num]
        first, *second = (joined([texts[i][1][part] for i in index]) for part in range(num))
        x = text_windows(first, second[0] if second else None, how, max_length=model.max_length,
                         **model.vocab.ends)
        ids = np.split(x.sequences.ids, x.sequences.offsets[1:-1])
        found += zip([index[i] for i in x.text], ids, x.sequences.first_lengths, strict=True)
    found.sort(key=lambda window: window[0])
    of_text, tokens, first_lengths = zip(*found, strict=True)
    sequences = Sequences(
        np.concatenate(tokens), np.cumsum([0, *map(len, tokens)]), np.array(first_lengths))
    return TextWindows(sequences, np.array(of_text), how), Units(sequences)


def _stream_texts(
    model: LoadedModel, texts: Iterable[Any], function: Function,
    results: Callable[[list[Tokenized], TextWindows, Outputs], Iterable[Any]], *,
    allowed: Sequence[int] = (1, 2), how: str = 'first', empty: bool = False, trained_on: int = 0,
    prepared: Callable[[Sequence[str]], Sequence[str]] = list, **more: Any,
) -> Iterator[Any]:
    """`LoadedModel.stream` over texts and pairs; arguments are those of it and of `_tokenize`.

    `trained_on` is the one number of texts that may belong together, as in training; 0: any.
    """
    def read(text: Any, number: int) -> Tokenized:
        if trained_on and len(parts_of(text, *allowed)) != trained_on:
            raise InputError(
                'it is a single text, and the model was trained on pairs: give a second text (with '
                'a TAB between the two, --pairs or --text-pair), or ask for it with --any-form '
                '(any_form=True)' if trained_on == 2 else
                'it is a pair, and the model was trained on single texts: ask for it with '
                '--any-form (any_form=True)')
        return _tokenize(
            model, text, number, allowed=allowed, how=how, empty=empty, prepared=prepared)

    return model.stream(
        texts, function=function, results=results, read=read,
        make=functools.partial(_text_units, model, how=how), **more)


def next_sentence(model: LoadedModel, pairs: Iterable[Text]) -> Iterator[Result]:
    """The probability that the second text of a pair follows the first in a document.

    Args:
      pairs: (first, second).

    Returns:
      For each pair: {'first', 'second', 'probability'}.
    """
    model.need('next-sentence')

    def results(pairs: list[Tokenized], windows: Any, outputs: Outputs) -> Iterator[Result]:
        for (parts, _), of_pair in zip(pairs, softmax(outputs['logits']).tolist(), strict=True):
            yield shown(parts) | {'probability': of_pair[0]}

    function = bound(engine.next_sentence, model.config)
    return _stream_texts(
        model, pairs, function, results, allowed=(2,), keys=('probability',), num=2)


def classify(
    model: LoadedModel, texts: Iterable[Text], windows: str | None = None, any_form: bool = False
) -> Iterator[Result]:
    """Labels of texts or pairs; values (regression); or which ending fits (multiple choice).

    Args:
      texts: texts or pairs (first, second), as the model was trained on; for multiple choice
        (beginning, ending, ending, ...).
      windows: what happens to a text that is longer than the model takes. 'first': it is cut.
        'mean', 'max': it is read in windows that overlap by half (of a pair, the longer text is,
        with the shorter one in each window), and the mean of their probabilities or values,
        weighted by tokens, or the largest of each is taken. Default: as in the run, else 'first'.
      any_form: whether a model that was trained on pairs takes single texts too, or one of single
        texts pairs; else these get an error. (Models made elsewhere do not say which they take.)

    Returns:
      For each text: its 'text', or 'first' and 'second', with 'label', 'probability' and
      'probabilities' by label; or, from a multi-label model, with 'labels', those with a
      probability above 0.5, and 'probabilities'; or, from regression, with 'value' (of a
      cross-encoder, after the activation that its folder names). From multiple
      choice: 'text', 'choices', 'choice' (its index), 'probability' and 'probabilities'.
    """
    model.need('classify')
    head, labels = HEADS[model.weights.head], model.weights.labels
    if head is MultipleChoice:
        if windows is not None:
            raise InputError(f'windows={windows!r}: beginnings and ends are cut, not read in parts')
        return _choose(model, texts)

    def results(texts: Any, windows: TextWindows, outputs: Outputs) -> Iterator[Result]:
        logits = windows.combined_logits(head, outputs['logits']).astype(np.float64)
        if activation := model.weights.inference.get('activation'):
            logits = loaded.ACTIVATIONS[activation](logits)
        for (parts, _), result in zip(texts, head.described(logits, labels), strict=True):
            yield shown(parts) | result

    trained_on = int(model.weights.inference.get('num_texts', 0))
    (described,) = head.described(np.zeros((1, max(1, len(labels)))), labels)
    return _stream_texts(
        model, texts, model.objective.outputs, results, how=model.windows(windows),
        trained_on=0 if any_form else trained_on, keys=described,
        num=0 if any_form else trained_on)


def _choose(model: LoadedModel, texts: Iterable[Text]) -> Iterator[Result]:
    """Which ending fits a beginning; each pair of the two is a unit of its own."""
    def read(text: Text, number: int) -> list[Tokenized]:
        parts = parts_of(text)
        if len(parts) < 3:
            raise InputError('it has no choices: a beginning and two or more ends of it expected')
        return [_tokenize(model, (parts[0], end), number) for end in parts[1:]]

    def make(texts: list[list[Tokenized]]) -> tuple[TextWindows, Units]:
        return _text_units(model, [pair for text in texts for pair in text])

    def results(texts: list[list[Tokenized]], made: Any, outputs: Outputs) -> Iterator[Result]:
        bounds = np.cumsum([len(text) for text in texts])[:-1]
        for text, logits in zip(texts, np.split(outputs['logits'][:, 0], bounds), strict=True):
            probabilities = softmax(logits).tolist()
            best = int(logits.argmax())
            pairs = [parts for parts, _ in text]
            yield {'text': pairs[0][0], 'choices': [end for _, end in pairs], 'choice': best,
                   'probability': probabilities[best], 'probabilities': probabilities}

    return model.stream(
        texts, read=read, make=make, results=results, function=model.objective.outputs,
        keys=('choices', 'choice', 'probability', 'probabilities'))


def _layers(model: LoadedModel, layers: Any) -> tuple[int, ...]:
    """Returns the argument `layers`; raises InputError if they are not layers of the model."""
    lowest = -model.config.num_layers - 1
    try:
        numbers = tuple(map(operator.index, layers))
    except TypeError:
        numbers = ()
    if not numbers or not all(lowest <= number <= -1 for number in numbers):
        raise InputError(f'layers={layers!r:.60} must be layers of the model, such as (-1, -2): -1 '
                         f'is the last, {lowest + 1} the first, {lowest} the embeddings')
    return numbers


def features(
    model: LoadedModel, texts: Iterable[Text], layers: Sequence[int] = (-1,)
) -> Iterator[Result]:
    """Hidden states of every token, [CLS] and [SEP] among them.

    Args:
      texts: texts or pairs; those longer than the model takes are cut.
      layers: counted from the top: -1 is the last layer, -num_layers the first, and
        -num_layers - 1 the embeddings.

    Returns:
      For each text: {'tokens': n strings, 'values': [n, layers, H] float32}.
    """
    wanted = _layers(model, layers)

    def results(texts: Any, windows: TextWindows, outputs: Outputs) -> Iterator[Result]:
        ids, bounds = windows.sequences.ids, windows.sequences.offsets.tolist()
        for begin, end in zip(bounds[:-1], bounds[1:], strict=True):
            yield {'tokens': [model.vocab.tokens[i] for i in ids[begin:end]],
                   'values': outputs['values'][begin:end]}

    return _stream_texts(
        model, texts, bound(engine.hidden_states, model.config, wanted), results, empty=True,
        refused=lambda text, reason: {'tokens': None, 'values': None, 'error': reason},
        values_per_token=len(wanted) * model.config.hidden_size)


def text_vectors(
    model: LoadedModel, texts: Iterable[Text], pool: str | None = None, layer: int = -1,
    normalize: bool | None = None, windows: str | None = None,
) -> Iterator[np.ndarray]:
    """A vector [H] float32 for each text, NaN if it cannot be read; see `Model.vectors`."""
    sentences, how = model.sentences, model.windows(windows)
    if pool is None or normalize is None:
        of_model = sentences.pooling()
        pool = of_model[0] if pool is None else pool
        normalize = of_model[1] if normalize is None else normalize
    pool = loaded.one_of('pool', pool, POOLS)
    num_left_out = 0  # tokens at the beginning
    if sentences.prompt and not sentences.pools_prompt():
        num_left_out = 1 + len(model.tokenizer.encode(sentences.prepared([''])[0]))
        if how != 'first':
            raise InputError(f"windows={how!r}: the model's vectors leave out its prompt "
                             f'{sentences.prompt!r:.60}, which only the first window has')

    def results(texts: Any, windows: TextWindows, outputs: Outputs) -> Iterable[np.ndarray]:
        result = windows.combined(outputs['vectors']).astype(np.float32, copy=False)
        if normalize:
            result = result / np.maximum(np.linalg.norm(result, axis=1, keepdims=True), 1e-12)
        return (vector.copy() for vector in result)  # a view would keep the chunk's array alive

    def refused(text: Any, reason: str) -> np.ndarray:
        model.note(f'{text!r:.40} has no vector: {reason}')
        return np.full(model.config.hidden_size, np.nan, np.float32)

    function = bound(engine.vectors, model.config, *_layers(model, [layer]), pool, num_left_out)
    return _stream_texts(model, texts, function, results, how=how, empty=True, refused=refused,
                         prepared=sentences.prepared)


# The defaults of google-research/bert's run_squad, for settings that the model lacks.
_DEFAULTS = {'max_seq_length': 384, 'doc_stride': 128, 'max_query_length': 64}


def answer(
    model: LoadedModel, questions: Iterable[Text], max_answer_length: int = 30,
    null_threshold: float | None = None,
) -> Iterator[Result]:
    """The span of a context that answers a question, as the evaluation on SQuAD finds it.

    Args:
      questions: (question, context). Long contexts are read in windows, as in the run's evaluation;
        by default of 384 tokens, 128 apart.
      max_answer_length: the most tokens of an answer.
      null_threshold: '' is the answer if its score exceeds that of every other answer by more than
        this; default: the threshold that the model's SQuAD 2.0 run found, else '' is never given.

    Returns:
      For each question: {'question', 'answer', 'start', 'end', 'score', 'probability'}; the answer
      is context[start:end], its score the sum of the logits of its first and last token, and its
      probability that among the best 20 answers.
    """
    from bert_jax.tasks import squad  # imported here: it imports what only training needs

    model.need('answer')
    max_answer_length = _count('max_answer_length', max_answer_length)
    is_number = isinstance(null_threshold, numbers.Real) and not math.isnan(null_threshold)
    if null_threshold is not None and not is_number:
        raise InputError(f'null_threshold={null_threshold!r:.60} must be a number')
    defaults = _DEFAULTS | dict(model.weights.inference)
    threshold = defaults.get('null_threshold') if null_threshold is None else null_threshold
    max_length = min(defaults['max_seq_length'], model.max_length)
    # As evaluation cuts it, or shorter, so that at least one token of the context fits.
    max_question = min(defaults['max_query_length'], max_length - 4)
    places = piece_places(model.tokenizer)

    def read(pair: Any, number: int) -> list[str]:
        parts = parts_of(pair, 2)
        model.check_pair()
        length, _ = (len(model.encode(text)) for text in parts)
        if length > max_question:
            model.note(f'question {number} has {length} tokens: its end is left out, after '
                       f'{max_question}')
        return parts

    def make(asked: list[list[str]]) -> tuple[Any, Units]:
        windows = squad.squad_windows(
            [squad.Question(str(i), text, context) for i, (text, context) in enumerate(asked)],
            model.encode_all, cls_id=model.vocab.cls_id, sep_id=model.vocab.sep_id,
            max_length=max_length, doc_stride=defaults['doc_stride'],
            max_question_length=max_question)
        return windows, Units(windows.sequences)

    def results(asked: Any, windows: Any, outputs: Outputs) -> Iterator[Result]:
        predictions = squad.predict_answers(
            windows, outputs['start_logits'], outputs['end_logits'], vocab=model.vocab,
            lowercase=model.weights.lowercase, switches=model.tokenizer.switches,
            version='v1' if threshold is None else 'v2', max_answer_length=max_answer_length,
            places=places)
        for question, result in zip(windows.questions, predictions.values(), strict=True):
            is_empty = threshold is not None and result.null_odds > threshold
            text = '' if is_empty else result.text
            best = next(x for x in result.n_best if x.text == text)
            begin, end = best.place
            yield {'question': question.text, 'answer': question.context[begin:end],
                   'start': begin, 'end': end, 'score': best.start_logit + best.end_logit,
                   'probability': best.probability}

    return model.stream(
        questions, read=read, make=make, results=results, function=model.objective.outputs,
        refused=lambda pair, reason: {
            'question': shown(pair, 2).get('first'), **dict.fromkeys(
                ('answer', 'start', 'end', 'score', 'probability')), 'error': reason})


Words = tuple[str, list[str], list[int]]  # a text, its words, the index where each begins in it


def tag(model: LoadedModel, texts: Iterable[Text]) -> Iterator[Result]:
    """A label for each word, predicted at its first piece, and the entities that the labels form.

    Texts longer than the model takes are read in windows that overlap by half or more.

    Args:
      texts: texts, whose words are separated by white space, or lists of words.

    Returns:
      For each text: {'text', 'tags': [{'word', 'label', 'probability', 'start', 'end'}, ...],
      'entities': [{'text', 'label', 'start', 'end', 'probability'}, ...]}; start and end count
      characters of the text (of a list: of its words joined by spaces), and an entity's probability
      is that of its least likely word.
    """
    from bert_jax.tasks import tagging

    model.need('tag')
    labels = model.weights.labels
    meant = tagging.entity_tags(labels)  # part-of-speech labels form no entities

    def make(texts: list[Words]) -> tuple[np.ndarray, Units]:
        sequences, word_T = tagging.word_windows(
            [words for _, words, _ in texts if words], model.encode_all,
            max_length=model.max_length, **model.vocab.ends, unk_id=model.vocab.unk_id)
        return word_T, Units(sequences)

    def results(texts: list[Words], word_T: np.ndarray, outputs: Outputs) -> Iterator[Result]:
        places = np.flatnonzero(word_T >= 0)
        logits = np.empty((len(places), len(labels)))
        if len(places):
            logits[word_T[places]] = outputs['logits'][places]
        bounds = np.cumsum([len(words) for _, words, _ in texts])[:-1]
        for (text, words, begins), of_text in zip(texts, np.split(logits, bounds), strict=True):
            tags: list[Result] = [
                {'word': word, 'label': labels[int(row.argmax())], 'probability': float(row.max()),
                 'start': begin, 'end': begin + len(word)}
                for word, begin, row in zip(words, begins, softmax(of_text), strict=True)]
            spans = tagging.entity_spans([meant[x['label']] for x in tags]) if meant else []
            yield {'text': text, 'tags': tags, 'entities': [
                {'label': label, 'start': tags[i]['start'],
                 'probability': min(x['probability'] for x in tags[i:end]),
                 'text': text[tags[i]['start'] : tags[end - 1]['end']], 'end': tags[end - 1]['end']}
                for label, i, end in spans]}

    return model.stream(
        texts, read=_words, make=make, results=results, function=model.objective.outputs,
        refused=lambda text, reason: {
            'text': shown(text).get('text'), 'tags': [], 'entities': [], 'error': reason})


def _words(text: Any, number: int) -> Words:
    words = raw_words(text) if isinstance(text, str) else parts_of(text)
    text = text if isinstance(text, str) else ' '.join(words)
    begins, at = [], 0
    for word in words:
        begins.append(text.index(word, at))
        at = begins[-1] + len(word)
    return text, words, begins


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

    # Each command as a generator, and as a method that returns a list.
    iter_fill_mask, fill_mask = fill_mask, _listed(fill_mask)
    iter_next_sentence, next_sentence = next_sentence, _listed(next_sentence)
    iter_score, score = score, _listed(score)
    iter_classify, classify = classify, _listed(classify)
    iter_answer, answer = answer, _listed(answer)
    iter_tag, tag = tag, _listed(tag)
    iter_features, features = features, _listed(features)
    iter_vectors = text_vectors

    def vectors(
        self, texts: Iterable[Text], pool: str | None = None, layer: int = -1,
        normalize: bool | None = None, windows: str | None = None,
    ) -> np.ndarray:
        """One vector per text: [texts, H] float32; NaN for a text that cannot be read.

        Args:
          texts: texts or pairs.
          pool: 'mean' or 'max' over all tokens, [CLS] and [SEP] among them, or 'cls', the hidden
            state of [CLS] (before the pooler); default: as in the `modules.json` of
            sentence-transformers beside the weights, else 'mean'.
          layer: as in `features`.
          normalize: whether vectors are scaled to length 1; default: as in that file, else not.
          windows: as in `classify`.
        """
        vectors = list(self.iter_vectors(texts, pool, layer, normalize, windows))
        return np.stack(vectors) if vectors else np.zeros((0, self.config.hidden_size), np.float32)
