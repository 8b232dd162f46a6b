"""Losses of a text in a vocabulary: words that it does not know, and capitals."""

import contextlib
import os
from collections.abc import Iterable

import numpy as np

from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError
from bert_jax.text.library import Unsplittable
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.vocab import capitals_in

# Shares of [UNK] among the pieces of a text: more than the first is worth a warning where the
# vocabulary lacks the case of the text, more than the second in any text, and more than the third
# leaves nothing to learn.
_WARNED_IN_OTHER_CASE = 0.01
_WARNED = 0.05
_REFUSED = 0.5
_SAMPLE_CHARACTERS = 1 << 17  # in which those of unknown words are counted


def check_known(
    ids: np.ndarray, tokenizer: Tokenizer, text: str, vocab_file: str | os.PathLike[str] | None,
    sample: Iterable[str] = (),
) -> None:
    """Warns of what a text or its vocabulary loses, and refuses a text that is mostly [UNK].

    Long words that are one [UNK] each are few pieces and may be most of the characters, which are
    counted too.

    Args:
      ids: of the text, or of a part of it; with or without [CLS] and [SEP].
      tokenizer: made the ids.
      text: name of the text, for the message.
      vocab_file: name of the vocabulary, for the message.
      sample: some of the text, which is looked at if a piece is [UNK].

    Raises:
      InputError: there are no words, or more than half of the pieces are [UNK]: nothing could be
        learned from it.
    """
    vocab = tokenizer.vocab
    is_piece = (ids != vocab.cls_id) & (ids != vocab.sep_id) & (ids != vocab.pad_id)
    pieces = ids[is_piece]
    if not len(pieces):
        raise InputError(f'{text} holds no text: all of it is empty')
    unknown = 0.0
    if vocab.unk_id not in (None, vocab.cls_id, vocab.sep_id, vocab.pad_id):
        unknown = float(np.mean(pieces == vocab.unk_id))
    share = f'{text}: {100 * unknown:.1f} % of its pieces are [UNK] in {vocab_file}'
    if unknown > _REFUSED:
        raise InputError(
            f'{share}, so there is nothing to learn from: set config.data.vocab_file to a '
            'vocabulary of its language (and config.data.lowercase as it was made)')
    if tokenizer.lowercase is True and vocab.is_cased:
        hosts.say(f'warning: {capitals_in(vocab, vocab_file)}, and none of these is ever used, as '
                  'config.data.lowercase=True: set it to False')
    elif (tokenizer.lowercase is False and vocab.is_cased is False
            and unknown > _WARNED_IN_OTHER_CASE):
        hosts.say(f'warning: {share}, whose pieces have no capitals, while '
                  'config.data.lowercase=False keeps those of the text: set it to True')
    elif unknown > _WARNED:
        hosts.say(f'warning: {share}, and are lost: take a vocabulary or a model of its language '
                  '(config.data.vocab_file, config.init_checkpoint)')
    elif unknown:
        _say_unknown_characters(tokenizer, text, vocab_file, sample)


def _say_unknown_characters(
    tokenizer: Tokenizer, text: str, vocab_file: str | os.PathLike[str] | None,
    sample: Iterable[str],
) -> None:
    """Warns if many characters of a text's sample are in pieces that are [UNK]."""
    num_unknown = 0
    total = 0
    longest = 0
    for part in sample:
        with contextlib.suppress(Unsplittable):
            ids, places = tokenizer.encode_with_places(part)
            for piece_id, (begin, end) in zip(ids, places, strict=True):
                if piece_id == tokenizer.vocab.unk_id:
                    num_unknown += end - begin
                    longest = max(longest, end - begin)
            total += sum(map(len, part.split()))
        if total > _SAMPLE_CHARACTERS:
            break
    if num_unknown > _WARNED * total:
        hosts.say(f'warning: {text}: {100 * min(1, num_unknown / total):.1f} % of its characters '
                  f'are in words that are one [UNK] each in {vocab_file}, of up to {longest:,} '
                  'characters, and are lost: put spaces into runs of letters, or take another kind '
                  'of tokenizer (config.data.tokenizer, config.data.vocab_file)')
