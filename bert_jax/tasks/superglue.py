"""SuperGLUE (Wang et al., 2019): its eight tasks, from its files or the hub.

Files lie in the folders of the official download (`CB/train.jsonl`, `CB/val.jsonl`, ...). The hub's
data set aps/super_glue has the same fields, with numbered labels; its `wsc.fixed` is read for WSC.
MultiRC and ReCoRD, which have several candidates a question, are those of `tasks.candidates`.
"""

import functools
import os
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bert_jax.rows import table
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.runtime.hub import split_of
from bert_jax.tasks import candidates
from bert_jax.tasks.candidates import candidates_task
from bert_jax.tasks.choices import choice_task
from bert_jax.tasks.handles import ScoredModel
from bert_jax.tasks.labelled import LabelledTask
from bert_jax.tasks.labels import LabelFormat, LabelParser, labels_by_number
from bert_jax.tasks.sources import one_source, warn_of_trained_on
from bert_jax.tasks.texts import TextExamples, TextHead, text_task

_PREFIX = 'superglue_'
_TRUTH = ('false', 'true')
# Of WSC: the fields of its noun and its pronoun, with their places among the words of the text, and
# what is put around each.
_SPANS = ('span1_text', 'span1_index', 'span2_text', 'span2_index')
_MARKS = ('*', '#')
# What COPA asks of a premise.
_QUESTIONS = {'cause': 'What was the cause of this?', 'effect': 'What happened as a result?'}


class SuperGlueTask(NamedTuple):
    """One task.

    Attributes:
      folder: of its files.
      fields: those that its texts are made of; of the hub's data set, if there are others too.
      labels: label id -> string, in the hub's order; empty: the index of the right choice.
      metrics: the first picks the best evaluation.
      texts: from the cells of these fields to the texts of an example, or Malformed.
      official: the fields of the official files, if those are others.
    """

    folder: str
    fields: tuple[str, ...]
    labels: tuple[str, ...] = _TRUTH
    metrics: tuple[str, ...] = ('accuracy',)
    texts: Callable[[list[Any]], list[str]] = table.texts_of
    official: tuple[str, ...] = ()


class CandidatesTask(NamedTuple):
    """A task with several candidates a question.

    Attributes:
      folder: of its files.
      read: makes questions of a file.
      score: of the questions.
    """

    folder: str
    read: Callable[..., list[candidates.Question]]
    score: candidates.Score


def _word_in_both(cells: list[Any]) -> list[str]:
    """WiC: whether the word means the same in both sentences; it stands before the first."""
    word, first, second = table.texts_of(cells)
    return [f'{word}: {first}', second]


def _question_of(cells: list[Any]) -> list[str]:
    """COPA: a premise with its question, and the choices."""
    premise, question, *choices = table.texts_of(cells)
    if question not in _QUESTIONS:
        raise table.Malformed(f"question '{question:.60}' is neither cause nor effect")
    return [f'{premise} {_QUESTIONS[question]}', *choices]


def _marked_spans(cells: list[Any]) -> list[str]:
    """WSC: whether a pronoun means a noun; both stand between marks.

    (The baseline of the benchmark pools the vectors of both spans instead.)
    """
    text, *spans = cells
    if len(spans) == 1:  # of the official files
        (target,) = spans
        if not isinstance(target, Mapping):
            raise table.Malformed(f'target={target!r:.60} is no object')
        spans = [target.get(name) for name in _SPANS]
    nouns_and_pronouns = zip(table.texts_of(spans[::2]), spans[1::2], _MARKS, strict=True)
    words = table.texts_of([text])[0].split()
    places: list[tuple[int, int, str]] = []
    for span, index, mark in nouns_and_pronouns:
        if type(index) is not int or not 0 <= index < len(words):
            raise table.Malformed(f'there is no word {index!r:.60}, where {span!r:.60} should be')
        start = _place_of(span, index, words)
        places.append((start, start + max(1, len(span.split())) - 1, mark))
    places.sort(key=lambda place: place[0] - place[1])  # the longer one is around the other
    marked: list[str] = []
    for i, word in enumerate(words):
        marked += [mark for start, _, mark in places if start == i]
        marked.append(word)
        marked += [mark for _, last, mark in reversed(places) if last == i]
    return [' '.join(marked)]


def _place_of(span: str, index: int, words: Sequence[str]) -> int:
    """Where the words of a span begin: at `index`, or, as it is off in some rows, the nearest."""
    named = ' '.join(span.split()).lower()
    there = ' '.join(words[index:]).lstrip(string.punctuation).lower()
    if there.startswith(named) and not there[len(named) :][:1].isalnum():
        return index  # the last word may have an ending, as "he" has in "he'd"
    wanted = list(map(_bare, span.split()))
    bare = list(map(_bare, words))
    places: list[int] = []
    for i in range(len(words)):
        if bare[i : i + len(wanted)] == wanted:
            places.append(i)
    return min(places, key=lambda place: abs(place - index), default=index)


def _bare(word: str) -> str:
    """A word without the punctuation around it, and without its case."""
    return word.strip(string.punctuation).lower()


SUPERGLUE_TASKS: Mapping[str, SuperGlueTask | CandidatesTask] = {
    'boolq': SuperGlueTask('BoolQ', ('question', 'passage')),
    'cb': SuperGlueTask(
        'CB', ('premise', 'hypothesis'), ('entailment', 'contradiction', 'neutral'),
        ('accuracy', 'macro_f1')),
    'copa': SuperGlueTask(
        'COPA', ('premise', 'question', 'choice1', 'choice2'), (), texts=_question_of),
    'multirc': CandidatesTask('MultiRC', candidates.read_multirc, candidates.score_multirc),
    'record': CandidatesTask('ReCoRD', candidates.read_record, candidates.score_record),
    'rte': SuperGlueTask('RTE', ('premise', 'hypothesis'), ('entailment', 'not_entailment')),
    'wic': SuperGlueTask('WiC', ('word', 'sentence1', 'sentence2'), texts=_word_in_both),
    'wsc': SuperGlueTask(
        'WSC', ('text', *_SPANS), texts=_marked_spans, official=('text', 'target')),
}
_HUB_FOLDERS = {'wsc': 'wsc.fixed'}  # where it is not the name of the task
TASK_NAMES = tuple(_PREFIX + name for name in SUPERGLUE_TASKS)


def open_superglue(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Trained on train, scored on val."""
    name = config.task.removeprefix(_PREFIX)
    task = SUPERGLUE_TASKS[name]
    read: Callable[..., Any] = functools.partial(read_superglue, name)
    wholes: Callable[[Any], list[str]] = TextExamples.wholes
    if isinstance(task, CandidatesTask):
        read = task.read
        wholes = candidates.wholes
    splits: dict[str, Any] = {'train': None}
    for split in ['dev'] if scored else ['dev', 'train']:
        path = _path_of_split(config, name, split)
        splits[split] = read(path, max_malformed=config.data.max_malformed)
    train, dev = splits['train'], splits['dev']
    if train is not None and config.data.eval_source:
        warn_of_trained_on(config, wholes(train), wholes(dev))
    if isinstance(task, CandidatesTask):
        return candidates_task(config, train, dev, task.score)
    if not task.labels:
        return choice_task(config, train, dev)
    head = TextHead('classification', task.labels, task.metrics)
    return text_task(config, head=head, train=train, sets={'dev': dev})


def _path_of_split(config: ConfigDict, name: str, split: str) -> str:
    """The file of a split; raises InputError if there is none."""
    if split == 'dev' and config.data.eval_source:
        return str(as_path(config.data.eval_source))
    folder = SUPERGLUE_TASKS[name].folder
    source = one_source(config, f'the folder of the benchmark, with {folder}/ in it')
    on_hub = split_of(
        source, f"{_HUB_FOLDERS.get(name, name)}/{split.replace('dev', 'validation')}")
    if on_hub:
        return on_hub
    if source.startswith('hf:') or as_path(source).is_file():
        if split == 'dev':
            raise InputError('config.data.eval_source is empty: name the file to evaluate on')
        return source
    stems = ['val', 'dev', 'validation'] if split == 'dev' else ['train']
    return table.find_file(os.path.join(source, folder), [f'{stem}.jsonl' for stem in stems])


def read_superglue(name: str, path: str, *, max_malformed: float = 0.01) -> TextExamples:
    """The examples of a file with labels.

    Args:
      name: of the task, without several candidates a question.
      path: of JSON lines, or Parquet with numbered labels.
      max_malformed: as for `read_texts`.

    Raises:
      InputError: a missing field, an unknown label, too many malformed rows, or no such file.
    """
    task = SUPERGLUE_TASKS[name]
    assert isinstance(task, SuperGlueTask)
    names = task.labels or ('0', '1')
    of_choices = () if task.labels else ('choice1', 'choice2')  # as the hub's data set calls them
    numbered = labels_by_number(path, names, of_choices)
    labels = LabelParser(names, only=True, format=LabelFormat(numbered=numbered))
    fields = task.fields
    if task.official and set(task.official) <= set(table.column_names(path)):
        fields = task.official

    def parse(cells: list[Any]) -> tuple[list[str], Any]:
        return task.texts(cells[:-1]), labels.parse(cells[-1])

    rows = table.read_table(
        path, [*fields, 'label'], parse, id_column='idx', optional=['idx'],
        max_malformed=max_malformed)
    columns: Sequence[Sequence[str]] = list(zip(*(texts for texts, _ in rows.values), strict=True))
    return TextExamples(
        columns, np.asarray(labels.array([label for _, label in rows.values])), rows.ids, path)
