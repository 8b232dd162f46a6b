"""How rows of pre-training are made: the options, and where rows fall short of them."""

import dataclasses
import math
from typing import NamedTuple

from bert_jax.config.fields import FIELDS
from bert_jax.rows.masking import MaskingRates

# How far counts may be from what was asked for: documents end somewhere, and the last sentence of
# many has no next one.
_MAX_DEVIATION_OF_RANDOM_NEXT = 0.15
_MIN_USED = 0.8
_MIN_MASKED = 0.9  # of what is wanted


@dataclasses.dataclass(frozen=True)
class RowOptions(MaskingRates):
    """Options of making rows, named as the fields of `config.data`.

    And `num_separators`, how many [SEP] stand between A and B, which the vocabulary says.
    """

    max_seq_length: int = FIELDS['data.max_seq_length'].default
    max_predictions_per_seq: int = 20  # of so many tokens
    short_seq_prob: float = FIELDS['data.short_seq_prob'].default
    random_next_prob: float = FIELDS['data.random_next_prob'].default
    next_sentence: bool = FIELDS['data.next_sentence'].default
    min_sentences: int = FIELDS['data.min_sentences'].default
    split_long_sentences: bool = FIELDS['data.split_long_sentences'].default
    num_maskings: int = FIELDS['data.num_maskings'].default
    num_separators: int = 1

    @property
    def num_special(self) -> int:
        """Number of [CLS] and [SEP] in a row."""
        return 2 + self.num_separators if self.next_sentence else 2

    @property
    def max_tokens(self) -> int:
        """Room for A and B in a row, in tokens."""
        return self.max_seq_length - self.num_special


class RowStatistics(NamedTuple):
    """What a sample of an epoch's rows holds.

    Attributes:
      rows: number of rows in the sample.
      random_next: share of them whose B is from another document.
      used: share of the text's tokens that are in the rows made of them; the others were cut off.
      masked: share of the rows' tokens, [CLS] and [SEP] included, that are masked.
      wanted: what `masked` would be if no word had more pieces than may be masked.
    """

    rows: int
    random_next: float
    used: float
    masked: float
    wanted: float


def row_warnings(counts: RowStatistics, recipe: RowOptions, name: str) -> list[str]:
    """What is lost in rows, in a line each with the remedy.

    Args:
      counts: of the rows.
      recipe: that they were made by.
      name: of their source.
    """
    rows = f'rows of {recipe.max_seq_length} from {name}'
    cuts_off = counts.used < _MIN_USED and not recipe.split_long_sentences
    warnings = []
    if recipe.next_sentence and _random_next_deviates(counts, recipe):
        cause = 'most documents are too short for two segments: join rows into documents'
        if cuts_off:
            cause = 'a long sentence fills a row: set config.data.split_long_sentences=True'
        warnings.append(
            f'{counts.random_next:.1%} of the pairs in {rows} have a random next sentence, not '
            f'{recipe.random_next_prob:.0%} (config.data.random_next_prob), because {cause}, or '
            'train without pairs, config.data.next_sentence=False')
    if cuts_off:
        warnings.append(
            f'{1 - counts.used:.1%} of the tokens are cut off in {rows}, at the ends of long '
            'sentences: set config.data.split_long_sentences=True, or take longer rows')
    if counts.masked < _MIN_MASKED * counts.wanted:
        warnings.append(
            f'{counts.masked:.1%} of the tokens are masked in {rows}, not {counts.wanted:.1%}, '
            'because many words have more pieces than may be masked in a row: set '
            "config.data.masking='pieces', or take longer rows")
    return warnings


def _random_next_deviates(counts: RowStatistics, recipe: RowOptions) -> bool:
    """Whether more or fewer next sentences are random than asked for, beyond chance."""
    chance = 0.5 / math.sqrt(counts.rows)  # the standard deviation of a share of a half
    deviation = abs(counts.random_next - recipe.random_next_prob)
    return deviation > _MAX_DEVIATION_OF_RANDOM_NEXT + chance


# Old names, for config files of users (docs/stability.md).
Recipe = RowOptions
Counts = RowStatistics
