"""A WordPiece or SentencePiece vocabulary: tokens, their ids, and the five special ones.

The file format is Google BERT's: one token per line, whose id is the line number (from 0).
"""

import dataclasses
import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.files import as_path, check_size, digest, read_bytes, write_whole

PAD = '[PAD]'
UNK = '[UNK]'
CLS = '[CLS]'
SEP = '[SEP]'
MASK = '[MASK]'
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
CONTINUATION = '##'
_MOST_MIB = 64  # of a tokenizer's file; that of XLM-R, with 250,000 pieces, has 17
# A vocabulary is cased if so large a share of its pieces with letters has capitals: an uncased one
# may have a few, of words that somebody put into its [unused] slots.
_CASED_SHARE = 0.01


class Frame(NamedTuple):
    """How texts become a sequence: [CLS] A [SEP], and [CLS] A [SEP] B [SEP].

    Attributes:
      cls_id, sep_id: of the vocabulary.
      num_separators: how many [SEP] stand between A and B: two in RoBERTa's pairs.
    """

    cls_id: int
    sep_id: int
    num_separators: int = 1

    def num_special(self, *, pair: bool) -> int:
        """The number of [CLS] and [SEP] in a sequence of one text, or of a pair."""
        if pair:
            return 2 + self.num_separators
        return 2


@dataclasses.dataclass(frozen=True, eq=False)
class Vocab:
    """Tokens and their ids; build one with `from_file` or `from_tokens`.

    Attributes:
      tokens: the V tokens, by id. Where two are equal, text gets the id of the later one.
      pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens; `unk_id` is None where
        the tokenizer has none, since no text is unknown to it.
      is_continuation: [V] bool_, read-only; true where a token continues a word (whole-word
        masking joins it to the token before).
      num_separators: see `Frame`.
    """

    tokens: tuple[str, ...]
    pad_id: int
    unk_id: int | None
    cls_id: int
    sep_id: int
    mask_id: int
    is_continuation: np.ndarray = dataclasses.field(repr=False)
    num_separators: int = 1

    @functools.cached_property
    def index(self) -> dict[str, int]:
        """Token -> id, the last where several have the token."""
        return {token: i for i, token in enumerate(self.tokens)}

    @functools.cached_property
    def repeated(self) -> tuple[int, ...]:
        """The ids that no text gets, because a later id has the same token."""
        return tuple(i for i, token in enumerate(self.tokens) if self.index[token] != i)

    @property
    def distinct_tokens(self) -> list[str]:
        """The tokens by id, with names that occur in no text at the ids in `repeated`."""
        tokens = list(self.tokens)
        for i in self.repeated:
            tokens[i] = unused_row(i)
        return tokens

    @property
    def stand_in_id(self) -> int:
        """The id of what stands for a word without pieces: [UNK], or [MASK] where there is none."""
        if self.unk_id is None:
            return self.mask_id
        return self.unk_id

    @functools.cached_property
    def num_with_capitals(self) -> int:
        """The number of tokens with capitals, which lower-cased text cannot have."""
        return sum(token != token.lower() for token in self.tokens if not _is_bracketed(token))

    @functools.cached_property
    def is_cased(self) -> bool | None:
        """Whether the tokens are of text with capitals; None if they have no letters with case."""
        num_with_case = sum(
            token.lower() != token.upper() for token in self.tokens if not _is_bracketed(token))
        if not num_with_case:
            return None
        return self.num_with_capitals >= _CASED_SHARE * num_with_case

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def frame(self) -> Frame:
        """How texts of these tokens become a sequence."""
        return Frame(self.cls_id, self.sep_id, self.num_separators)

    @functools.cached_property
    def written_mask(self) -> re.Pattern[str]:
        """What a text has in the place of a masked token: that token's name, or [MASK]."""
        names = (self.tokens[self.mask_id], MASK)
        return re.compile('|'.join(map(re.escape, names)))

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with any token or its id."""
        content = '\n'.join(self.tokens).encode('utf-8', 'surrogatepass')
        return digest(content)

    def with_tokens(self, tokens: Mapping[int, str], source: str) -> 'Vocab':
        """This vocabulary with other tokens, in place of unused ones or after the last.

        Args:
          tokens: by id. Ids that get no token are named as unused.
          source: what an error message calls this vocabulary.

        Raises:
          InputError: an id has another token already.
        """
        all_tokens = list(self.tokens)
        num_tokens = max(tokens, default=0) + 1
        all_tokens += [unused_row(i) for i in range(len(self), num_tokens)]
        for i, token in tokens.items():
            if all_tokens[i] != token and not is_unused(all_tokens[i]):
                raise InputError(f'{source}: the added token {token!r} has the id {i}, which is '
                                 f'that of {all_tokens[i]!r} in the vocabulary: put the files of '
                                 'one tokenizer together')
            all_tokens[i] = token
        special_ids = (self.pad_id, self.stand_in_id, self.cls_id, self.sep_id, self.mask_id)
        specials = [self.tokens[i] for i in special_ids]
        return type(self).from_tokens(all_tokens, specials=specials, source=source)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a vocabulary file.

        Lines are stripped of all Unicode white space, as Google's `load_vocab` does. Tokens made
        of nothing but white space cannot occur in text; they keep their line so that the ids
        after them hold.

        Raises:
          InputError: the file is missing, a directory, empty, not UTF-8 text, or lacks a special
            token.
        """
        lines = [line.removesuffix('\r') for line in read_lines(path)]
        # Google maps token -> line number and lets later lines win. Where stripping makes two
        # different lines equal, the later one therefore owns the token, and the earlier one keeps
        # its white space, with which it never matches.
        last = {line.strip(): line for line in lines}
        tokens = []
        for line in lines:
            token = line.strip()
            tokens.append(token if token and last[token] == line else line)
        vocab = cls.from_tokens(tokens, source=str(path))
        vocab._note_repeated(path)
        return vocab

    def _note_repeated(self, path: str | os.PathLike[str]) -> None:
        """Says that lines of the vocabulary's file are equal, if some are."""
        if not self.repeated:
            return
        first = self.repeated[0]
        token = self.tokens[first]
        tell_once(
            f'note: {path}: repeated or empty lines ({len(self.repeated)} of them, such as line '
            f'{first + 1}, {token!r}, again in line {self.index[token] + 1}): as in the original, '
            'the last of equal lines counts, and the ids stay as they are')

    @classmethod
    def from_tokens(
        cls, tokens: Iterable[str], *, specials: Sequence[str] = SPECIAL_TOKENS,
        is_continuation: Sequence[bool] | np.ndarray | None = None, num_separators: int = 1,
        source: str = 'vocabulary',
    ) -> Self:
        """Makes a vocabulary of `tokens`, in the order of their ids.

        Args:
          tokens: V tokens.
          specials: what this vocabulary calls [PAD], [UNK], [CLS], [SEP] and [MASK].
          is_continuation: [V] bool; by default true for tokens that begin with `##`.
          num_separators: see `Frame`.
          source: what an error message calls this vocabulary.

        Raises:
          InputError: a special token is missing.
        """
        tokens = tuple(tokens)
        index = {token: i for i, token in enumerate(tokens)}
        missing = [token for token in specials if token not in index]
        if missing:
            raise InputError(f"{source}: {', '.join(missing)} is missing among {len(tokens)} tokens"
                             f": a vocabulary of BERT has {', '.join(specials)}; of SentencePiece, "
                             "train it with control_symbols=[CLS],[SEP],[MASK] and pad_id=0")
        if is_continuation is None:
            is_continuation = [_continues_word(token) for token in tokens]
        flags = np.array(is_continuation, np.bool_)
        flags.flags.writeable = False
        pad, unk, cls_token, sep, mask = specials
        return cls(
            tokens,
            pad_id=index[pad],
            unk_id=index[unk],
            cls_id=index[cls_token],
            sep_id=index[sep],
            mask_id=index[mask],
            is_continuation=flags,
            num_separators=num_separators,
        )


def unused_row(i: int) -> str:
    """The name of an id that has no token of its own; it occurs in no text."""
    return f'[unused row {i}]'


def _continues_word(token: str) -> bool:
    return token.startswith(CONTINUATION) and token != CONTINUATION


def _is_bracketed(token: str) -> bool:
    return token.startswith('[') and token.endswith(']')


def is_unused(token: str) -> bool:
    """Whether a token is a placeholder such as `[unused0]`."""
    return re.fullmatch(r'\[unused[^\[\]]*\]', token) is not None


def read_file(path: str | os.PathLike[str], what: str, field: str) -> bytes:
    """The content of a file.

    Raises:
      InputError: it cannot be read, is too large or empty; the message names `what` and the
        config's `field`.
    """
    check_size(path, _MOST_MIB)
    try:
        data = read_bytes(as_path(path))
    except OSError as error:
        raise InputError(f"{path}: the {what} file cannot be read "
                         f"({error.strerror or 'No such file'}): check {field}") from None
    if not data.strip():
        raise InputError(f'{path}: the {what} file is empty; check {field}')
    return data


def read_lines(
    path: str | os.PathLike[str], what: str = 'vocabulary', field: str = 'vocab_file'
) -> list[str]:
    """The lines of a UTF-8 file, split at `\\n` only: tokens may hold other line separators.

    Raises:
      InputError: where `read_file` raises it, or the file is not UTF-8.
    """
    text = read_text(path, what, field)
    return text.removeprefix('\ufeff').rstrip('\r\n').split('\n')


def read_text(path: str | os.PathLike[str], what: str, field: str) -> str:
    """The text of a UTF-8 file.

    Raises:
      InputError: where `read_file` raises it, or the file is not UTF-8.
    """
    data = read_file(path, what, field)
    try:
        return data.decode('utf-8')
    except UnicodeDecodeError as error:
        line = data.count(b'\n', 0, error.start) + 1
        raise InputError(
            f'{path}: line {line} is not UTF-8 (byte 0x{data[error.start]:02x} at offset '
            f'{error.start}); convert it to UTF-8 (a SentencePiece model is called NAME.model)'
        ) from None


def vocab_content(tokens: Iterable[str]) -> str:
    """What a vocabulary's file holds: one token per line."""
    return ''.join(f'{token}\n' for token in tokens)


def write_vocab(path: str | os.PathLike[str], tokens: Iterable[str]) -> None:
    """Writes one token per line; the file appears whole or not at all."""
    write_whole(path, vocab_content(tokens))
