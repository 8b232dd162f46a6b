"""Where rows fall short of what was asked for, a line says what is lost and the remedy."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from bert_jax.rows.pairs import RowOptions, RowStatistics, row_warnings

AS_ASKED = RowStatistics(rows=10_000, random_next=0.55, used=0.97, masked=0.15, wanted=0.15)


@dataclasses.dataclass(frozen=True)
class Case:
    """Counts that differ from `AS_ASKED`, and the words that stand in each warning about them."""

    counts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    warnings: Sequence[Sequence[str]] = ()


@pytest.mark.parametrize('case', [
    pytest.param(Case(), id='as asked'),
    pytest.param(
        Case(
            counts={'random_next': 0.993},
            warnings=[['99.3%', 'not 50%', 'join rows into documents',
                       'config.data.next_sentence=False']]),
        id='documents too short'),
    pytest.param(
        Case(counts={'random_next': 0.0}, options={'next_sentence': False}), id='without pairs'),
    pytest.param(
        Case(counts={'random_next': 0.8}, options={'random_next_prob': 0.8}), id='another rate'),
    pytest.param(
        Case(
            counts={'random_next': 0.3}, options={'random_next_prob': 0.1},
            warnings=[['30.0%', 'not 10%']]),
        id='not the rate asked for'),
    pytest.param(Case(counts={'random_next': 0.75, 'rows': 8}), id='chance'),
    pytest.param(
        Case(counts={'random_next': 1.0, 'rows': 6}, warnings=[['100.0%']]), id='beyond chance'),
    pytest.param(
        Case(
            counts={'random_next': 0.73, 'used': 0.5}, options={'split_long_sentences': False},
            warnings=[['73.0%', 'split_long_sentences=True'],
                      ['50.0% of the tokens', 'longer rows']]),
        id='long sentences'),
    pytest.param(
        Case(
            counts={'masked': 0.09}, options={'masking': 'words'},
            warnings=[['9.0%', 'not 15.0%', "data.masking='pieces'"]]),
        id='words too long to mask'),
])
def test_what_is_lost_is_said_with_the_remedy(case):
    lines = row_warnings(AS_ASKED._replace(**case.counts), RowOptions(**case.options), 'wiki.txt')
    assert len(lines) == len(case.warnings)
    for line, words in zip(lines, case.warnings, strict=True):
        assert '\n' not in line
        for word in (*words, 'wiki.txt', '128'):
            assert word in line
