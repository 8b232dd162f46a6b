"""A label for each word: CoNLL-2003's named entities (paper section 5.3), or your own tags.

From top to bottom: the tasks; readers of sentences with a tag for each word (CoNLL-2003: Tjong Kim
Sang and De Meulder, 2003); windows of tokens in which every word is scored once; precision, recall
and F1 of entities as the `conlleval` script counts them. Tags are O, B-TYPE and I-TYPE, in IOB1 or
IOB2: an entity begins at every B-, and at an I- that does not follow a tag of its type in its
sentence.

    W: words, n: sentences, E: entities, P: word pieces of all words, T: tokens of all windows
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.config import model_sizes
from bert_jax.data.pairs import Encode, Sequences, make_sequences
from bert_jax.heads.tagging import FEATURES
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, open_whole
from bert_jax.runtime.hosts import say
from bert_jax.tasks import table
from bert_jax.tasks.labelled import (
    EvalSet,
    LabelledData,
    LabelledTask,
    Outputs,
    ScoredModel,
    check_labels_known,
    one_source,
    open_tokenization,
    own_files,
    refuse_eval_source,
    tfds_records,
)
from bert_jax.tasks.metrics import accuracy, macro_f1
from bert_jax.tasks.packing import Units, tile


def open_conll(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Trained on train, scored on dev, and on test where it is there (`test_f1` and so on)."""
    if scored is not None and config.data.eval_source:
        mine = read_conll_file(
            str(as_path(config.data.eval_source)), max_malformed=config.data.max_malformed)
        return _task(
            config, config.conll, scored.labels or mine.labels, None, {'dev': mine}, ('f1',))
    refuse_eval_source(config, 'eng.testa of the folder')
    splits = ('train', 'dev', 'test') if scored is None else ('dev', 'test')
    examples = {s: part for s in splits if (part := _read_conll(config, s)) is not None}
    train = examples.pop('train', None)
    labels = (train or examples['dev']).labels if scored is None or not scored.labels else (
        scored.labels)
    return _task(config, config.conll, labels, train, examples, ('f1',))


def open_tagging(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Trained on `data.source`, scored on `data.eval_source` or on sentences held out of it.

    Tags may be of any set: entities are scored by their F1, other tags by the words that are right.
    """
    kind = {
        'words': config.data.text, 'tags': config.data.label,
        'max_malformed': config.data.max_malformed, 'names': _names(config.data.label_names),
    }
    train, dev = own_files(
        config, functools.partial(read_tagged_file, **kind), ConllExamples.sentences,
        meaning='a file with a word and its tag in each line, or JSON lines', what='sentences',
        training=scored is None,
    )
    if train is None:
        known = scored.labels if scored and scored.labels else dev.labels
        return _task(config, config.tagging, known, None, {'dev': dev}, _metrics(known))
    counts = dict(zip(*np.unique(train.tags, return_counts=True), strict=True))
    say(f'{len(train):,} sentences, {len(train.words):,} words; tags: ' + ', '.join(
        f'{tag} {n:,}' for tag, n in sorted(counts.items(), key=lambda item: -item[1])[:20]))
    if unseen := sorted(set(dev.tags) - set(train.tags)):
        say(f"note: {', '.join(unseen[:10])} occur only in evaluation and count as errors")
    return _task(
        config, config.tagging, train.labels, train, {'dev': dev}, _metrics(train.labels))


def _names(given: str) -> list[str]:
    """Names of tags that are numbers: `A,B,C`, or the lines of a file.

    Raises:
      InputError: one stands there twice.
    """
    path = as_path(given)
    names = (path.read_text(encoding='utf-8').splitlines() if given and path.exists()
             else given.split(',') if given else [])
    names = [name.strip() for name in names if name.strip()]
    if len(set(names)) < len(names):
        raise InputError(f'config.data.label_names={given} has a name twice')
    return names


def _metrics(tags: Sequence[str]) -> tuple[str, ...]:
    """The metrics of a model of these tags, whatever the file; the first picks the best."""
    return ('f1',) if are_entities(tags) else ('accuracy',)


def _task(
    config: ConfigDict, section: ConfigDict, labels: tuple[str, ...], train: ConllExamples | None,
    evaluated: Mapping[str, ConllExamples], metrics: Sequence[str],
) -> LabelledTask:
    for examples in evaluated.values():
        if set(examples.tags) == {'O'}:
            say(f'warning: {examples.source} has no tag but O: every score but accuracy will be 0')
            continue
        check_labels_known(examples.source, set(examples.tags) - {'O'}, set(labels) - {'O'})
        if metrics[0] == 'f1' and not are_entities(examples.tags):
            raise InputError(
                f"{examples.source} has tags such as {_odd_tag(examples.tags)!r}"
                f", the model entities ({', '.join(labels[:4])}), so that no F1 of entities can be "
                'computed: write its tags as B-TYPE, I-TYPE and O'
            )
    t = open_tokenization(config)
    _check_features(config, section.features)

    def cut(examples: ConllExamples) -> ConllWindows:
        return conll_windows(
            examples, t.encode, labels, max_length=t.max_length,
            document_context=section.document_context, unk_id=t.vocab.unk_id, **t.vocab.ends,
        )

    def eval_set(split: str, examples: ConllExamples) -> EvalSet:
        windows = cut(examples)
        scored = windows.word_index >= 0

        def predict(outputs: Outputs) -> list[str]:
            """The tag of each word."""
            tags = np.zeros(len(examples.words), np.int64)
            tags[windows.word_index[scored]] = outputs['logits'][scored].argmax(axis=-1)
            return [labels[tag] for tag in tags.tolist()]

        def score(outputs: Outputs) -> dict[str, float]:
            tags = predict(outputs)
            if metrics[0] == 'f1':
                return conll_scores(tags, examples.tags, examples.sentence_offsets)
            pair = np.array(tags), np.array(examples.tags)
            return {'accuracy': accuracy(*pair), 'macro_f1': macro_f1(*pair)}

        def write(outputs: Outputs, workdir: Path) -> None:
            write_conll(workdir / f'{split}_predictions.txt', examples.words, examples.tags,
                        predict(outputs), examples.sentence_offsets)

        return EvalSet('' if split == 'dev' else f'{split}_', _units(windows), score, write)

    return LabelledTask(config, t, LabelledData(
        train=None if train is None else _units(cut(train)),
        evaluated=tuple(eval_set(*item) for item in evaluated.items()),
        metric=metrics[0], labels=labels,
        head='feature_tagger' if section.features else 'token_classification',
        frozen='bert' if section.features else '',
        objective={'num_outputs': len(labels)} | (
            {'features': section.features} if section.features else {}),
        inference={'features': section.features} if section.features else {},
    ))


def _odd_tag(tags: Sequence[str]) -> str:
    return next(tag for tag in tags if not are_entities([tag, 'B-X']))


def _check_features(config: ConfigDict, features: str) -> None:
    where = f'config.{config.task}.features={features!r}'
    if features and features not in FEATURES:
        raise InputError(f"{where} is unknown: choose from {', '.join(FEATURES)}")
    if features and config.model.scan_layers:
        raise InputError(
            'config.model.scan_layers=True keeps no output of each layer, which '
            f'{where} needs: leave it False'
        )
    if features == 'second_to_last' and model_sizes(config)['num_layers'] < 2:
        raise InputError(f"{where} needs two layers: choose 'last'")


def _units(windows: ConllWindows) -> Units:
    return Units(windows.sequences, tokens={
        'token_labels': windows.labels,
        'token_weights': (windows.word_index >= 0).astype(np.float32),
    })


def _read_conll(config: ConfigDict, split: str) -> ConllExamples | None:
    """A split from the folder `data.source`; None where it has no test split."""
    if config.data.source == 'tfds:conll2003':
        if config.conll.document_context:
            raise InputError(
                "config.data.source='tfds:conll2003' has lost the documents; name the folder of "
                'the original files, or use configs/conll.py:sentences'
            )
        return from_tfds(split, tfds_records(config, 'conll2003', split))
    folder = one_source(config, 'the folder with eng.train and eng.testa')
    if split == 'test' and not find_conll(folder, split):
        return None
    return read_conll(folder, split, max_malformed=config.data.max_malformed)


# Of the original distribution, and as its IOB2 editions are called.
_FILES = {
    'train': ('eng.train', 'train.txt'),
    'dev': ('eng.testa', 'valid.txt', 'dev.txt', 'testa.txt'),
    'test': ('eng.testb', 'test.txt', 'testb.txt'),
}
# Of the labels in tensorflow-datasets' conll2003, whose own order this is.
_TFDS_TAGS = ('O', 'B-PER', 'I-PER', 'B-ORG', 'I-ORG', 'B-LOC', 'I-LOC', 'B-MISC', 'I-MISC')
_DOCUMENT_START = '-DOCSTART-'
# Columns are separated by these; other white space of Unicode may be a word of the text.
_CELL = re.compile(r'[^ \t]+')


@dataclasses.dataclass(frozen=True)
class ConllExamples:
    """n sentences of W words, in the order of the file.

    Attributes:
      words: of all sentences, one after the other.
      tags: of each word, in IOB2 whichever scheme the file has.
      lines: [W] int64, where each word stands in the file.
      sentence_offsets: [n + 1] int64; sentence i is words[offsets[i] : offsets[i + 1]].
      documents: [n] int64, the document of each sentence, from 0; a file without -DOCSTART- lines
        is one document.
      source: the file, for messages.
    """

    words: list[str]
    tags: list[str]
    lines: np.ndarray
    sentence_offsets: np.ndarray
    documents: np.ndarray
    source: str

    def __len__(self) -> int:
        return len(self.documents)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels of a tagger: O, then B- and I- of each type that occurs, types sorted; or the
        tags that occur, sorted, where they are of no such scheme."""
        tags = set(self.tags)
        if all(TAG.fullmatch(tag) for tag in tags):
            return ('O', *(f'{kind}-{name}' for name in tag_types(self.tags) for kind in 'BI'))
        return tuple(sorted(tags, key=lambda tag: (tag != 'O', tag)))

    def sentences(self) -> list[str]:
        """[n] their words, by spaces."""
        o = self.sentence_offsets.tolist()
        return [' '.join(self.words[a:b]) for a, b in zip(o[:-1], o[1:], strict=True)]

    def take(self, sentences: np.ndarray) -> ConllExamples:
        """Some of the sentences, ascending."""
        words = np.flatnonzero(np.isin(
            np.repeat(np.arange(len(self)), np.diff(self.sentence_offsets)), sentences))
        lengths = np.diff(self.sentence_offsets)[sentences]
        return dataclasses.replace(
            self, words=[self.words[i] for i in words], tags=[self.tags[i] for i in words],
            lines=self.lines[words], sentence_offsets=np.append(0, np.cumsum(lengths)),
            documents=self.documents[sentences],
        )


def find_conll(source: str, split: str) -> str:
    """The file of a split; '' where the folder has none.

    Args:
      source: a folder with `eng.train`, `eng.testa` and `eng.testb`, or with `train.txt`,
        `valid.txt` and `test.txt`, plain or `.gz`.
      split: train | dev | test.

    Raises:
      InputError: an unknown split or no such folder.
    """
    if split not in _FILES:
        raise InputError(f"'{split}' is no split; they are {', '.join(_FILES)}")
    if not as_path(source).is_dir():
        raise InputError(f'no folder {source}: name one with {_FILES[split][0]} in it')
    for name in _FILES[split]:
        for path in (os.path.join(source, name), os.path.join(source, f'{name}.gz')):
            if as_path(path).is_file():
                return path
    return ''


def read_conll(source: str, split: str, *, max_malformed: float = 0.01) -> ConllExamples:
    """Sentences of a split.

    Args:
      source, split: as for `find_conll`.
      max_malformed: see `read_conll_file`.

    Raises:
      InputError: an unknown split, no such folder or file, or what `read_conll_file` finds.
    """
    path = find_conll(source, split)
    if not path:
        raise InputError(f"{source} has none of {', '.join(_FILES[split])}, plain or .gz")
    return read_conll_file(path, max_malformed=max_malformed)


def from_tfds(split: str, records: Iterable[Mapping[str, Any]]) -> ConllExamples:
    """Sentences out of the records of tensorflow-datasets' conll2003.

    They are shuffled, and nothing says which document they are from: each is one.

    Args:
      split: for messages.
      records: NumPy values by feature: `tokens` as bytes and `ner` as label ids.
    """
    sentences = [record for record in records if len(record['tokens'])]
    lengths = [len(record['tokens']) for record in sentences]
    return ConllExamples(
        words=[word.decode() for record in sentences for word in record['tokens']],
        tags=[_TFDS_TAGS[tag] for record in sentences for tag in record['ner']],
        lines=np.repeat(np.arange(len(sentences)) + 1, lengths),
        sentence_offsets=np.append(0, np.cumsum(lengths)),
        documents=np.arange(len(sentences)), source=f'tfds:conll2003:{split}',
    )


def read_conll_file(
    path: str, *, max_malformed: float = 0.01, any_tags: bool = False
) -> ConllExamples:
    """All sentences of one file: a word first and its tag last in a line, empty lines between.

    Both IOB1 (the original `eng.*`) and IOB2 are read; see `metrics.conll` for the rule that
    covers the two.

    Args:
      path: the file, plain or `.gz`; as many columns as most of its lines have, at least two,
        separated by spaces or tabs.
      max_malformed: share of the lines with words that may have another number of columns; one
        always may, unless this is 0.
      any_tags: whether tags may be of any scheme: they stay as they are, but that entities of
        IOBES become IOB2's.

    Raises:
      InputError: an unreadable or empty file, one without tags, a tag that is not O, B-TYPE or
        I-TYPE (without `any_tags`), too many malformed lines.
    """
    # Cells are made twice rather than kept: a list for each line would keep the garbage
    # collector busy for longer than all the rest takes.
    texts = [text for _, text in table.lines(path)]
    widths = Counter(
        len(_CELL.findall(text)) for text in texts if not text.startswith(_DOCUMENT_START)
    )
    del widths[0]
    if not widths:
        raise InputError(f'{path} holds no words: copy it again')
    width = widths.most_common(1)[0][0]
    if width < 2:
        raise InputError(
            f'{path} has one column: there are no tags to learn or to score; expected a word and '
            'its tag in each line'
        )
    faults: list[tuple[int, str]] = []
    words, tags, lines, sentences, documents = [], [], [], [], []
    document = sentence = 0
    for line, text in enumerate(texts, 1):
        cells = _CELL.findall(text)
        if not cells:
            sentence += 1
        elif cells[0] == _DOCUMENT_START:
            document += 1
            sentence += 1
        elif len(cells) != width:
            faults.append((line, f'columns: {len(cells)}, where {width} are wanted'))
        else:
            words.append(cells[0])
            tags.append(cells[-1])
            lines.append(line)
            sentences.append(sentence)
            documents.append(document)
    table.check_malformed(path, len(words), faults, max_malformed)
    lines_W = np.array(lines, np.int64)
    if not any_tags:
        _check_tags(path, lines_W, tags)
    starts = np.flatnonzero(np.diff(sentences, prepend=-1))
    offsets = np.append(starts, len(words))
    return ConllExamples(
        words=words,
        tags=normal_tags(tags, offsets),
        lines=lines_W,
        sentence_offsets=offsets,
        documents=np.unique(np.array(documents)[starts], return_inverse=True)[1],
        source=path,
    )


def read_tagged_file(
    path: str, *, words: str, tags: str, max_malformed: float = 0.01, names: Sequence[str] = ()
) -> ConllExamples:
    """All sentences of one file with tags of any set.

    Args:
      path: `.jsonl`, an object a sentence with a list of words and one of tags, all of one
        document; or a word first and its tag last in a line, empty lines between sentences. Plain
        or `.gz`.
      words, tags: fields of the objects.
      max_malformed: share of the rows that may be malformed; one always may, unless this is 0.
      names: of tags that are numbers.

    Raises:
      InputError: what is wrong with the file.
    """
    if table.format_of(path) != 'json':
        return read_conll_file(path, max_malformed=max_malformed, any_tags=True)

    def parse(cells: list[Any]) -> tuple[list[str], list[str]]:
        some, their = cells
        if not (isinstance(some, list) and isinstance(their, list) and len(some) == len(their)):
            raise table.Malformed(f"'{words}' and '{tags}' are not two lists of one length")
        if not all(isinstance(word, str) and word.strip() for word in some):
            raise table.Malformed('a word is no string, or an empty one')
        return table.texts_of(some), [tag_of(tag) for tag in their]

    def tag_of(tag: Any) -> str:
        if not names or not isinstance(tag, int):
            return table.label_text(tag)
        if not 0 <= tag < len(names):
            raise table.Malformed(f'tag {tag} has no name in config.data.label_names')
        return names[tag]

    rows = table.read_table(path, [words, tags], parse, max_malformed=max_malformed)
    if not names and rows.values and all(
            tag.isdigit() for _, their in rows.values for tag in their):
        say(f'warning: the tags of {path} are numbers, of which no entities can be made: name '
            'them with --config.data.label_names=O,B-PER,I-PER,...')
    # Sentences without words are no rows that are malformed, and nothing to learn from.
    result = [sentence for sentence in rows.values if sentence[0]]
    lines = [line for line, sentence in zip(rows.lines, rows.values) if sentence[0]]
    if not result:
        raise InputError(f'{path} holds no words: copy it again')
    lengths = [len(some) for some, _ in result]
    offsets = np.append(0, np.cumsum(lengths))
    return ConllExamples(
        words=[word for some, _ in result for word in some],
        tags=normal_tags([tag for _, their in result for tag in their], offsets),
        lines=np.repeat(np.array(lines, np.int64), lengths),
        # As a file of words without -DOCSTART- lines: one document.
        sentence_offsets=offsets, documents=np.zeros(len(result), np.int64),
        source=path,
    )


def _check_tags(path: str, lines_W: np.ndarray, tags: Sequence[str]) -> None:
    if wrong := {tag for tag in set(tags) if not TAG.fullmatch(tag)}:
        i = next(i for i, tag in enumerate(tags) if tag in wrong)
        raise InputError(
            f"{path}, line {lines_W[i]}: '{tags[i]}' is not a tag; expected O, B-TYPE or I-TYPE "
            '(IOB1 or IOB2) in the last column'
        )


@dataclasses.dataclass(frozen=True)
class ConllWindows:
    """Token sequences in which every word is scored exactly once.

    Attributes:
      sequences: [CLS] pieces [SEP], all segment 0.
      word_index: [T] int32; at the first piece of a word that is scored here, the place of the
        word in `ConllExamples.words`; -1 at all other tokens.
      labels: [T] int32, the label of that word; 0 at all other tokens.
    """

    sequences: Sequences
    word_index: np.ndarray
    labels: np.ndarray


def conll_windows(
    examples: ConllExamples, encode: Encode, labels: Sequence[str], *, max_length: int,
    document_context: bool, cls_id: int, sep_id: int, unk_id: int,
) -> ConllWindows:
    """Windows of sentences, or of whole documents.

    A *span*, which is a sentence, or with `document_context` all sentences of a document one after
    the other, is one window if it fits. A longer one is covered by windows of full length, evenly
    spaced and overlapping by at least half, and each word is scored in the one that gives it most
    context on its poorer side: about a quarter of a window or more on both, or up to the end of
    the span. So nothing is dropped, and a word sees its document ("maximal document context" of
    paper section 5.3; all of it where it fits) for at most about twice the tokens of the text. (A
    window for every sentence, filled up with its neighbours, would give half a window on both
    sides, for `max_length` tokens a sentence: 6.5 times the text of the training file at 128, 26
    times at 512.) A window may end inside a word, but begins with one.

    Words are tokenized one by one. One that yields no piece (BERT's tokenizer removes control
    characters) becomes [UNK], so that it is scored like any other.

    Args:
      examples: from `read_conll`.
      encode: tokenizer; entities want a cased vocabulary.
      labels: of the training file; a word's label is the place of its tag in them. Of other tags
        it is 0: they can be scored, by name, not trained on.
      max_length: tokens of a window, [CLS] and [SEP] included.
      document_context: whether neighbouring sentences of the document fill the window.
      cls_id, sep_id, unk_id: of the vocabulary.
    """
    ids = {label: i for i, label in enumerate(labels)}
    label_W = np.array([ids.get(tag, 0) for tag in examples.tags], np.int32)
    ids_P, counts_W = _pieces(encode, examples.words, unk_id)
    # Where each word's pieces begin; spans in pieces.
    first_W = np.cumsum(counts_W) - counts_W
    span_words = examples.sentence_offsets
    if document_context:
        span_words = np.append(
            span_words[:-1][np.diff(examples.documents, prepend=-1) != 0], span_words[-1]
        )
    spans = np.append(first_W, len(ids_P))[span_words]
    _, starts, ends, cores = tile(spans, max_length - 2)
    # The window that scores a word is the last whose core begins before or at its first piece.
    window_W = np.searchsorted(cores, first_W, side='right') - 1
    used, window_W = np.unique(window_W, return_inverse=True)  # only tails of huge words in others
    starts, ends = first_W[np.searchsorted(first_W, starts[used])], ends[used]

    counts = ends - starts
    before = np.cumsum(counts) - counts
    piece_T = np.arange(int(counts.sum())) - np.repeat(before - starts, counts)
    sequences = make_sequences(
        (ids_P[piece_T], counts), None, max_length=max_length, cls_id=cls_id, sep_id=sep_id
    )
    # Each word's one place among the tokens, behind the [CLS] of its window.
    at_W = sequences.offsets[window_W] + 1 + first_W - starts[window_W]
    word_index = np.full(len(sequences.ids), -1, np.int32)
    word_index[at_W] = np.arange(len(first_W))
    token_labels = np.zeros(len(sequences.ids), np.int32)
    token_labels[at_W] = label_W
    return ConllWindows(sequences, word_index, token_labels)


def _pieces(
    encode: Encode, words: Sequence[str], unk_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """(ids [P] int32, pieces of each word [W] int64, none of them 0)."""
    ids, counts = encode(words)
    counts = np.asarray(counts, np.int64)
    empty = np.flatnonzero(counts == 0)
    ids = np.insert(np.asarray(ids, np.int32), (np.cumsum(counts) - counts)[empty], unk_id)
    counts[empty] = 1
    return ids, counts


TAG = re.compile(r'O|[BI]-\S+')
_ANY_SCHEME = re.compile(r'O|[BIES]-\S+')


def _parse(
    tags: Sequence[str], offsets: np.ndarray, types: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """(whether an entity begins [W], index in `types` of each word's type or -1 outside [W])."""
    assert len(tags) == offsets[-1], (len(tags), offsets[-1])
    if unknown := sorted(tag for tag in set(tags) if not TAG.fullmatch(tag)):
        raise InputError(f"'{unknown[0]}' is not a tag: expected O, B-TYPE or I-TYPE")
    index = {name: i for i, name in enumerate(types)}
    # One array look-up a word: ids of the distinct tags first.
    names = {tag: i for i, tag in enumerate(dict.fromkeys(tags))}
    ids_W = np.fromiter(map(names.__getitem__, tags), np.int64, len(tags))
    type_W = np.array([index[tag[2:]] if tag != 'O' else -1 for tag in names], np.int64)[ids_W]
    is_b_W = np.array([tag[0] == 'B' for tag in names], np.bool_)[ids_W]
    previous_W = np.concatenate([[-1], type_W[:-1]])[: len(type_W)]
    starts = offsets[:-1]
    previous_W[starts[starts < len(type_W)]] = -1
    return (type_W >= 0) & (is_b_W | (type_W != previous_W)), type_W


def tag_types(*tags: Sequence[str]) -> list[str]:
    """The entity types of some tags, sorted."""
    return sorted({tag[2:] for some in tags for tag in set(some) if tag != 'O'})


def to_iob2(tags: Sequence[str], offsets: np.ndarray) -> list[str]:
    """Tags [W] of either scheme in IOB2: every entity begins with B-.

    Args:
      tags: of all sentences, one after the other.
      offsets: [n + 1]; sentence i is tags[offsets[i] : offsets[i + 1]].

    Raises:
      InputError: a tag is not O, B-TYPE or I-TYPE.
    """
    begins_W, _ = _parse(tags, offsets, tag_types(tags))
    return [f'B{tag[1:]}' if b else tag for tag, b in zip(tags, begins_W.tolist(), strict=True)]


def normal_tags(tags: Sequence[str], offsets: np.ndarray) -> list[str]:
    """Tags [W] of IOB1, IOB2 or IOBES in IOB2; those of no such scheme as they are."""
    if not are_entities(tags):
        return list(tags)
    plain = [{'S': 'B', 'E': 'I'}.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    return to_iob2(plain, offsets)


def are_entities(tags: Sequence[str]) -> bool:
    """Whether tags mark entities: each is O, B-TYPE, I-TYPE, or IOBES's E-TYPE or S-TYPE."""
    return all(_ANY_SCHEME.fullmatch(tag) for tag in set(tags)) and set(tags) != {'O'}


def _entities(begins_W: np.ndarray, type_W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(first words [E], words after the last [E]) of the entities, in order."""
    # A sentence begins with one of these as well: an I- has no tag to follow there.
    bounds = np.flatnonzero(begins_W | (type_W < 0))
    ends = np.append(bounds[1:], len(type_W))
    is_entity = begins_W[bounds]
    return bounds[is_entity], ends[is_entity]


def _scores(correct: float, predicted: float, gold: float) -> dict[str, float]:
    """Precision, recall and F1; 0 where undefined."""
    return {
        'precision': correct / max(predicted, 1.0),
        'recall': correct / max(gold, 1.0),
        'f1': 2.0 * correct / max(predicted + gold, 1.0),
    }


def conll_scores(
    predicted: Sequence[str], gold: Sequence[str], offsets: np.ndarray
) -> dict[str, float]:
    """Scores as fractions: an entity is right if its words and its type are exactly right.

    Args:
      predicted: tags [W] of all sentences.
      gold: the same of the reference.
      offsets: [n + 1]; sentence i is gold[offsets[i] : offsets[i + 1]].

    Returns:
      `precision`, `recall`, `f1` over all entities; `TYPE/precision`, `TYPE/recall`, `TYPE/f1` of
      each type that occurs; `accuracy`, the share of words with the right tag.

    Raises:
      InputError: a tag is not O, B-TYPE or I-TYPE.
    """
    assert len(predicted) == len(gold), (len(predicted), len(gold))
    types = tag_types(predicted, gold)
    result, wanted = _parse(predicted, offsets, types), _parse(gold, offsets, types)
    # The end [W] of the entity that begins at a word; -1: none does.
    ends = np.full((2, len(gold)), -1, np.int64)
    for row, parsed in zip(ends, (result, wanted), strict=True):
        starts_E, ends_E = _entities(*parsed)
        row[starts_E] = ends_E
    right_W = (ends[0] >= 0) & (ends[0] == ends[1]) & (result[1] == wanted[1])

    def count(where_W: np.ndarray, type_W: np.ndarray) -> np.ndarray:
        return np.bincount(type_W[where_W], minlength=len(types)).astype(np.float64)

    counts = np.stack([
        count(right_W, wanted[1]), count(result[0], result[1]), count(wanted[0], wanted[1])
    ])
    same = sum(a == b for a, b in zip(predicted, gold, strict=True))
    scores = _scores(*counts.sum(axis=1)) | {'accuracy': same / max(len(gold), 1)}
    for i, name in enumerate(types):
        scores |= {f'{name}/{key}': value for key, value in _scores(*counts[:, i]).items()}
    return {key: float(value) for key, value in scores.items()}


def write_conll(
    path: str | os.PathLike[str], words: Sequence[str], gold: Sequence[str],
    predicted: Sequence[str], offsets: np.ndarray,
) -> None:
    """Writes `word gold predicted` lines, an empty line after each sentence: conlleval's input.

    Args:
      path: the file, UTF-8.
      words, gold, predicted: [W], of all sentences.
      offsets: [n + 1] of the sentences.
    """
    lines = [f'{w} {g} {p}\n' for w, g, p in zip(words, gold, predicted, strict=True)]
    with open_whole(path) as file:
        for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            file.write((''.join(lines[start:end]) + '\n').encode())
