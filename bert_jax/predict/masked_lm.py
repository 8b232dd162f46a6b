"""Commands over the masked-LM head: filling in [MASK], and pseudo-perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from bert_jax.errors import InputError
from bert_jax.predict import heads
from bert_jax.predict.loaded import LoadedModel
from bert_jax.predict.rows import Tokens
from bert_jax.predict.runner import each_position
from bert_jax.predict.windows import around
from bert_jax.text.sentencepiece import WORD_START
from bert_jax.text.vocab import CONTINUATION, MASK, Vocab


def fill_mask(
    model: LoadedModel, texts: Iterable[str], top_k: int = 5
) -> Iterator[dict[str, Any]]:
    """The likeliest tokens for each [MASK]; see `Model.fill_mask`."""
    model.need('fill-mask')
    if top_k < 1:
        raise InputError(f'top_k={top_k} must be 1 or more')
    vocab = model.tokenizer.vocab
    runner = model.runner
    num = min(top_k, model.config.vocab_size)

    def program(x, positions, targets):  # type: ignore[no-untyped-def]
        del targets
        return heads.masked_lm_top(runner.params, x, positions, config=model.config, num=num)

    items = ((text, _prompt(model, text, i)) for i, text in enumerate(texts))
    for text, results in runner.stream(items, each_position(program)):
        masks = [mask for result in results for mask in zip(*result, strict=True)]
        predictions = [
            [
                {
                    'token': _name(vocab, i), 'id': i, 'probability': probability,
                    'sequence': _with_token(text, number, vocab, i),
                }
                for probability, i in zip(*(x.tolist() for x in mask), strict=True)
            ]
            for number, mask in enumerate(masks)
        ]
        yield {'text': text, 'predictions': predictions if len(masks) > 1 else predictions[0]}


def _prompt(model: LoadedModel, text: str, number: int) -> list[Tokens]:
    """The sequence of a prompt; of one that is too long, a window for each [MASK]."""
    model.encode(text, number)  # refuses empty ones
    vocab = model.tokenizer.vocab
    ids: list[int] = []
    masks = []
    for i, part in enumerate(text.split(MASK)):
        if i:
            masks.append(len(ids))
            ids.append(vocab.mask_id)
        ids += model.tokenizer.encode(part)
    if not masks:
        raise InputError(
            f'text {number + 1} has no {MASK}: write {MASK} where a word is to be filled in '
            f'({text[:60]!r})'
        )
    size = model.max_length - 2
    if len(ids) <= size:
        return [Tokens.of(vocab, ids, positions=[1 + at for at in masks])]
    model.note(
        f'text {number + 1} has {len(ids)} tokens, the model takes {size}: each {MASK} is filled '
        f'in from the {size} tokens around it'
    )
    begins = [around(len(ids), at, size) for at in masks]
    return [
        Tokens.of(vocab, ids[begin : begin + size], positions=[1 + at - begin])
        for at, begin in zip(masks, begins, strict=True)
    ]


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


def score(model: LoadedModel, texts: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Pseudo-log-likelihoods; see `Model.score`."""
    model.need('score')
    runner = model.runner

    def program(x, positions, targets):  # type: ignore[no-untyped-def]
        return heads.masked_lm_log_probability(
            runner.params, x, positions, targets, config=model.config
        )

    encoded = ((text, model.encode(text, i)) for i, text in enumerate(texts))
    items = ((text, _masked_in_turn(model, ids)) for text, ids in encoded)
    for text, results in runner.stream(items, each_position(program)):
        log_probability = math.fsum(float(x[0]) for x in results)
        yield {
            'text': text, 'num_tokens': len(results), 'log_probability': log_probability,
            'pseudo_perplexity': pseudo_perplexity(log_probability, len(results)),
        }


def pseudo_perplexity(log_probability: float, num_tokens: int) -> float:
    """exp of minus the mean log probability of a token (Salazar et al., 2020, section 2.3)."""
    return math.exp(min(-log_probability / num_tokens, 700.0))


def _masked_in_turn(model: LoadedModel, ids: list[int]) -> Iterator[Tokens]:
    """The text once for each token, which is masked; a window around it where it is too long."""
    vocab = model.tokenizer.vocab
    size = model.max_length - 2
    for at, target in enumerate(ids):
        begin = around(len(ids), at, size)
        masked = ids[begin : begin + size]
        masked[at - begin] = vocab.mask_id
        yield Tokens.of(vocab, masked, positions=[1 + at - begin], targets=[target])
