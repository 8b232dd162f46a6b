"""Entities that tags mark: the schemes of tags, and precision, recall and F1 as `conlleval` counts.

Tags of entities are O, B-TYPE and I-TYPE, in IOB1 or IOB2: an entity begins at every B-, and at an
I- that does not follow a tag of its type in its sentence. IOBES also has E- (the last word) and S-
(the only word), after which an entity begins, too; `entity_tags` reads other spellings of these.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bert_jax.runtime.hosts import say

# What the letters of tags mean in IOB1 and IOB2, IOBES (BMES has M) and BILOU: the beginning, the
# inside, the end of an entity, and one of a single word.
_LETTERS = {'B': 'B', 'I': 'I', 'M': 'I', 'E': 'E', 'L': 'E', 'S': 'S', 'U': 'S'}
_SPELLINGS = (re.compile(r'(?P<letter>[BIMELSU])[-_](?P<type>\S+)', re.IGNORECASE),
              re.compile(r'(?P<type>\S+)[-_](?P<letter>[BIMELSU])', re.IGNORECASE))


def entity_tags(tags: Iterable[str]) -> dict[str, str]:
    """The marks of entities that tags stand for: {tag: O, B-TYPE, I-TYPE, E-TYPE or S-TYPE}.

    It reads IOB1, IOB2, IOBES, BMES, BILOU and IO, with the letter before or after the type and in
    either case: B-PER, b-per, B_PER, PER-B. {} if a tag is none of these, or all are O.
    """
    names = set(tags)
    outside = names & {'O', 'o'}
    inside = names - outside
    if not inside:
        return {}
    for spelling in _SPELLINGS:
        marks = _spelled(inside, spelling)
        if marks:
            return dict.fromkeys(outside, 'O') | marks
    return {}


def _spelled(tags: Iterable[str], spelling: re.Pattern[str]) -> dict[str, str]:
    """The meaning of each tag; {} if one does not have this spelling."""
    marks: dict[str, str] = {}
    for tag in tags:
        match = spelling.fullmatch(tag)
        if not match:
            return {}
        letter = _LETTERS[match['letter'].upper()]
        marks[tag] = f"{letter}-{match['type']}"
    return marks


def are_entities(tags: Iterable[str]) -> bool:
    """Whether tags mark entities; see `entity_tags`."""
    return bool(entity_tags(tags))


def entity_types(marks: Iterable[str]) -> set[str]:
    """The types of entities in values of `entity_tags`."""
    return {mark[2:] for mark in marks if mark != 'O'}


def to_iob2(tags: Sequence[str]) -> list[str]:
    """The tags of a sentence, values of `entity_tags`, in IOB2: every entity begins with B-.

    An entity begins at every B- and S-, after every E- and S-, and where the type changes, as
    seqeval and conlleval have it.
    """
    result: list[str] = []
    for before, tag in itertools.pairwise(['O', *tags]):
        if tag == 'O':
            result.append(tag)
            continue
        begins = tag[0] in 'BS' or before[0] in 'ES' or tag[1:] != before[1:]
        letter = 'B' if begins else 'I'
        result.append(letter + tag[1:])
    return result


class EntitySpan(NamedTuple):
    """An entity: its type, its first word, and the word after its last."""

    type: str
    begin: int
    end: int


def entity_spans(tags: Sequence[str]) -> list[EntitySpan]:
    """The entities of a sentence, in order."""
    spans: list[EntitySpan] = []
    for i, tag in enumerate(to_iob2(tags)):
        if tag[0] == 'B':
            spans.append(EntitySpan(tag[2:], i, i + 1))
        elif tag[0] == 'I':
            spans[-1] = spans[-1]._replace(end=i + 1)
    return spans


def conll_scores(
    predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Scores as fractions. An entity is right if its words and its type are exactly right.

    Args:
      predicted: tags of each sentence.
      gold: the same of the reference.

    Returns:
      `precision`, `recall`, `f1` over all entities; `TYPE/precision`, `TYPE/recall`, `TYPE/f1` of
      each type that occurs; `accuracy`, the share of words with the right tag.
    """
    counts = _EntityCounts()
    num_words = 0
    num_equal = 0
    for tags, gold_tags in zip(predicted, gold, strict=True):
        num_words += len(gold_tags)
        num_equal += sum(tag == other for tag, other in zip(tags, gold_tags, strict=True))
        counts.add(entity_spans(tags), entity_spans(gold_tags))
    scores = _scores(counts.right.total(), counts.found.total(), counts.wanted.total())
    scores['accuracy'] = num_equal / max(num_words, 1)
    for name in counts.types:
        of_type = _scores(counts.right[name], counts.found[name], counts.wanted[name])
        for key, value in of_type.items():
            scores[f'{name}/{key}'] = value
    return scores


class _EntityCounts:
    """How many entities of each type there are in all sentences.

    Attributes:
      right: predicted, with the words and the type of the reference.
      found: predicted.
      wanted: in the reference.
    """

    def __init__(self) -> None:
        self.right: Counter[str] = Counter()
        self.found: Counter[str] = Counter()
        self.wanted: Counter[str] = Counter()

    def add(self, predicted: Sequence[EntitySpan], gold: Sequence[EntitySpan]) -> None:
        """Counts the entities of one more sentence."""
        for span in predicted:
            self.found[span.type] += 1
        for span in gold:
            self.wanted[span.type] += 1
        for span in set(predicted) & set(gold):
            self.right[span.type] += 1

    @property
    def types(self) -> list[str]:
        """The types that occur, sorted."""
        return sorted(self.found | self.wanted)


def _scores(correct: int, predicted: int, gold: int) -> dict[str, float]:
    """Precision, recall and F1; 0 where undefined."""
    return {
        'precision': correct / max(predicted, 1),
        'recall': correct / max(gold, 1),
        'f1': 2.0 * correct / max(predicted + gold, 1),
    }


def as_the_model_writes(
    gold: Sequence[Sequence[str]], meant: Mapping[str, str], predicted: Sequence[Sequence[str]], *,
    iob2: bool,
) -> list[list[str]]:
    """The reference as a perfect model would tag it, so that tags can be compared one by one.

    Args:
      gold: tags of each sentence in IOB2.
      meant: `entity_tags` of the model's labels, which show its scheme, but not IOB1 from IOB2.
      predicted: what it predicted, as values of `meant`; these show which of the two it is.
      iob2: whether it is known to have learned IOB2.
    """
    label_of = {mark: label for label, mark in meant.items()}
    is_iob1 = not iob2 and _writes_iob1(label_of, predicted)
    if is_iob1:
        say('note: the model begins entities with I-, as in IOB1: so does the reference here, for '
            'accuracy and loss')
    return [_rewritten(tags, label_of, is_iob1) for tags in gold]


def _writes_iob1(marks: Iterable[str], predicted: Sequence[Sequence[str]]) -> bool:
    """Whether a model with these marks begins most entities after another tag with I-."""
    if {mark[0] for mark in marks} != set('OBI'):
        return False
    begins: Counter[str] = Counter()
    for tags in predicted:
        for before, tag in itertools.pairwise(['O', *tags]):
            if tag != 'O' and tag[1:] != before[1:]:
                begins[tag[0]] += 1
    return begins['I'] > begins['B']


def _rewritten(tags: Sequence[str], label_of: Mapping[str, str], is_iob1: bool) -> list[str]:
    """The tags of a sentence as labels of the model; those that it lacks stay."""
    result = list(tags)
    for i, tag in enumerate(tags):
        if tag == 'O':
            result[i] = label_of.get('O', 'O')
    last_end: dict[str, int] = {}  # where the last entity of each type ends
    for span in entity_spans(tags):
        follows_its_type = last_end.get(span.type) == span.begin
        # Letters that may begin an entity, the preferred one first. In IOB1 that is I, and B only
        # where an entity of the same type ends just before.
        first = 'BI'
        if is_iob1 and not follows_its_type:
            first = 'IB'
        for i, letters in enumerate(_letters(span.end - span.begin, first), span.begin):
            result[i] = _first_label(letters, span.type, label_of) or tags[i]
        last_end[span.type] = span.end
    return result


def _first_label(letters: str, entity_type: str, label_of: Mapping[str, str]) -> str | None:
    """The model's label for the first of the letters that it has one for, if any."""
    for letter in letters:
        label = label_of.get(f'{letter}-{entity_type}')
        if label is not None:
            return label
    return None


def _letters(num_words: int, first: str) -> list[str]:
    """For each word of an entity, the letters that may mark it, the preferred one first.

    B begins an entity, I is inside it, E ends it, and S is an entity of a single word. Not every
    scheme has E and S: a model without them marks such words as if more followed.

    Args:
      num_words: of the entity.
      first: letters that may mark the first word, if the scheme has no S or more words follow.
    """
    if num_words == 1:
        return ['S' + first]
    return [first, *['I'] * (num_words - 2), 'EI']
