"""A tokenizer's vocabulary: tokens, their ids, and the five special ones."""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import numpy as np

from bert_jax.config.choices import GOOGLE, SEGMENTS, ZEROS
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.hashing import digest
from bert_jax.text.frames import Frame, berts_frame

PAD = '[PAD]'
UNK = '[UNK]'
CLS = '[CLS]'
SEP = '[SEP]'
MASK = '[MASK]'
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
CONTINUATION = '##'
# A vocabulary is cased if so large a share of its pieces with letters has capitals: an uncased one
# may have a few, of words that somebody put into its [unused] slots.
_CASED_SHARE = 0.01


@dataclasses.dataclass(frozen=True, eq=False)
class Vocab:
    """Tokens and their ids; build one with `vocab_files.read_vocab` or `from_tokens`.

    Attributes:
      tokens: the V tokens, by id. Where two are equal, text gets the id of the later one.
      pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens; `unk_id` is None where
        the tokenizer has none, since no text is unknown to it.
      is_continuation: [V] bool_, read-only; true where a token continues a word (whole-word
        masking joins it to the token before).
      num_separators: how many [SEP] stand between two texts: two in RoBERTa's pairs.
      template: how texts of these tokens become a sequence; None: as in BERT.
    """

    tokens: tuple[str, ...]
    pad_id: int
    unk_id: int | None
    cls_id: int
    sep_id: int
    mask_id: int
    is_continuation: np.ndarray = dataclasses.field(repr=False)
    num_separators: int = 1
    template: Frame | None = dataclasses.field(default=None, repr=False)

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
        """How texts of these tokens become a sequence, as the tokenizer has it."""
        return self.template or self.segments

    @property
    def segments(self) -> Frame:
        """The frame of BERT, or of RoBERTa, with the types of BERT."""
        return berts_frame(self.cls_id, self.sep_id, self.num_separators)

    def frame_for(self, truncation: str, token_types: str) -> Frame:
        """How texts of these tokens become a sequence for a model.

        Google's way to cut leaves out the ends of texts, whatever the tokenizer says.

        Args:
          truncation, token_types: one of `config.choices.TRUNCATIONS`, and of `TOKEN_TYPES`.
        """
        frame = self.segments if token_types == SEGMENTS else self.frame
        if token_types == ZEROS:
            frame = frame.without_types()
        return dataclasses.replace(
            frame, truncation=truncation,
            cuts_start=truncation != GOOGLE and self.frame.cuts_start)

    @functools.cached_property
    def written_mask(self) -> re.Pattern[str]:
        """Finds the masks in a text: the name of the mask token, or [MASK]."""
        names = (self.tokens[self.mask_id], MASK)
        return re.compile('|'.join(map(re.escape, names)))

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with any token or its id."""
        content = '\n'.join(self.tokens).encode('utf-8', 'surrogatepass')
        return digest(content)

    def with_tokens(self, tokens: Mapping[int, str], source: str) -> Self:
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
        extended = type(self).from_tokens(all_tokens, specials=specials, source=source)
        return dataclasses.replace(extended, template=self.template)

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
          num_separators: see the class.
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


def capitals_in(vocab: Vocab, vocab_file: object) -> str:
    """How many pieces of a vocabulary have capitals, as a phrase for messages."""
    return f'{vocab.num_with_capitals:,} of the {len(vocab):,} pieces of {vocab_file} have capitals'


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
