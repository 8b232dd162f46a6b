"""How texts become a sequence: special tokens and token types around them, and what is cut."""

import dataclasses

from bert_jax.config.choices import GOOGLE


@dataclasses.dataclass(frozen=True)
class Special:
    """A special token in a template: its id and its token type."""

    id: int
    type: int = 0


@dataclasses.dataclass(frozen=True)
class Text:
    """The place of a text in a template: 0 of the first, 1 of the second; and its token type."""

    number: int
    type: int = 0


Template = tuple[Special | Text, ...]


@dataclasses.dataclass(frozen=True)
class Frame:
    """How one text, or two, become a sequence.

    Attributes:
      single, pair: what the sequence consists of, in order; each text is there once.
      truncation: how pairs that are too long are cut, one of `config.choices.TRUNCATIONS`.
      cuts_start: whether texts that are too long lose their beginnings, not their ends.
    """

    single: Template
    pair: Template
    truncation: str = GOOGLE
    cuts_start: bool = False

    def template(self, *, pair: bool) -> Template:
        """The template of a sequence of one text, or of two."""
        return self.pair if pair else self.single

    def num_special(self, *, pair: bool) -> int:
        """The number of special tokens in a sequence of one text, or of two."""
        return sum(isinstance(part, Special) for part in self.template(pair=pair))

    @property
    def num_before_single(self) -> int:
        """The number of special tokens before a single text."""
        return [isinstance(part, Text) for part in self.single].index(True)

    @property
    def num_types(self) -> int:
        """The number of token types that a model needs for it."""
        return 1 + max(part.type for part in (*self.single, *self.pair))

    @property
    def num_separators(self) -> int | None:
        """How many [SEP] stand between the texts of a pair; None: it is not BERT's or RoBERTa's."""
        if len(self.single) != 3:
            return None
        cls, _, sep = self.single
        if isinstance(cls, Text) or isinstance(sep, Text):
            return None
        plain = self.without_types()
        for number in (1, 2):
            if berts_frame(cls.id, sep.id, number).without_types().pair == plain.pair:
                return number
        return None

    @property
    def lost_part(self) -> str:
        """The part that a text loses if it is too long, for messages."""
        return 'beginning' if self.cuts_start else 'end'

    def without_types(self) -> 'Frame':
        """The same with type 0 for all tokens."""
        return dataclasses.replace(
            self, single=_without_types(self.single), pair=_without_types(self.pair))


def _without_types(template: Template) -> Template:
    """A template with type 0 everywhere."""
    parts: list[Special | Text] = []
    for part in template:
        parts.append(dataclasses.replace(part, type=0))
    return tuple(parts)


def berts_frame(cls_id: int, sep_id: int, num_separators: int = 1) -> Frame:
    """[CLS] A [SEP], and [CLS] A [SEP] B [SEP], where B and what follows it have type 1.

    Args:
      cls_id, sep_id: of the vocabulary.
      num_separators: how many [SEP] stand between A and B: two in RoBERTa's pairs.
    """
    cls = Special(cls_id)
    sep = Special(sep_id)
    pair: Template = (cls, Text(0), *[sep] * num_separators, Text(1, 1), Special(sep_id, 1))
    return Frame((cls, Text(0), sep), pair)
