"""A tag for each word: CoNLL-2003's named entities (paper section 5.3), or your own tags.

From top to bottom: the tasks; what a tagger's labels mean; a set of sentences that is scored;
readers of sentences with a tag for each word (CoNLL-2003: Tjong Kim Sang and De Meulder, 2003).

    W: words
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bert_jax.answers.engine import Outputs
from bert_jax.answers.entities import (
    are_entities,
    as_the_model_writes,
    conll_scores,
    entity_tags,
    entity_types,
    to_iob2,
)
from bert_jax.config import model_sizes
from bert_jax.heads.classification import Classification
from bert_jax.rows import table
from bert_jax.rows.packing import Units
from bert_jax.rows.word_windows import WordWindows, word_windows
from bert_jax.runtime.errors import InputError, counted
from bert_jax.runtime.hosts import say
from bert_jax.tasks.handles import ScoredModel
from bert_jax.tasks.labelled import (
    EvalSet,
    LabelledTask,
    Results,
    Tokenization,
    open_tokenization,
)
from bert_jax.tasks.labels import check_labels_known, label_names, warn_of_alike, warn_of_rare
from bert_jax.tasks.metrics import accuracy, macro_f1, most_frequent, scores_of_one_answer
from bert_jax.tasks.sources import own_files, split_file, tfds_records, warn_of_trained_on
from bert_jax.tasks.word_lines import DOCUMENT_START, read_word_lines

# File names in the original distribution, then in its IOB2 editions.
_FILES = {
    'train': ('eng.train', 'train.txt'),
    'dev': ('eng.testa', 'valid.txt', 'dev.txt', 'testa.txt'),
    'test': ('eng.testb', 'test.txt', 'testb.txt'),
}
# Tags by id in the conll2003 of tensorflow-datasets and of the hub.
_TFDS_TAGS = ('O', 'B-PER', 'I-PER', 'B-ORG', 'I-ORG', 'B-LOC', 'I-LOC', 'B-MISC', 'I-MISC')
_NO_DOCUMENTS = ('has lost the documents; name the folder of the original files, or use '
                 'configs/conll.py:sentences')
# Names of the columns that are read where the config names none: the first, or, if the file lacks
# it, the only other one that it has.
_USUAL_WORDS = ('tokens', 'words', 'text', 'sentence')
_USUAL_TAGS = ('tags', 'ner_tags', 'pos_tags', 'ner', 'label', 'labels')
_NO_WORD = '[UNK]'  # stands for an empty word where words are in columns, as in the model's input
_TREEBANK = re.compile(r'\.conllu(\.gz|\.bz2)?$', re.IGNORECASE)
_TREEBANK_COLUMNS = 10
_IGNORED = '-100'  # what PyTorch's losses leave out
_OF_PIECES = (f'has {_IGNORED}, which stands for tokens without a tag, such as the second part of '
              'a word: write whole words, each with its tag')
_NOTHING = '_'  # in a column of a treebank
# The other columns of a treebank, by the names that data sets give them.
_UNREAD_COLUMNS = ('lemma', 'xpos', 'feats', 'head', 'deprel', 'deps', 'misc')
# The numbers of several words that are written as one, and of a word that the text leaves out.
_NO_WORD_OF_A_TREEBANK = re.compile(r'\d+-\d+|\d+\.\d+')
_ENTITY_TAG = re.compile(r'O|[BIES]-\S+')


def open_conll(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Trained on train, scored on dev and, if there is one, on test (`test_f1` and so on)."""
    train = None
    if scored is None:
        train = _read_conll(config, 'train')
    splits = ['dev']
    if not config.data.eval_source:
        splits.append('test')
    evaluated: dict[str, Tagged] = {}
    for split in splits:
        examples = _read_conll(config, split)
        if examples:
            evaluated[split] = examples
    if train is not None and config.data.eval_source:
        warn_of_trained_on(config, train.texts(), evaluated['dev'].texts())
    return _tagging_task(config, scored, train, evaluated)


def _read_conll(config: ConfigDict, split: str) -> Tagged | None:
    """The sentences of train, dev or test; None if there is no test split."""
    is_own_file = split == 'dev' and config.data.eval_source
    if config.data.source == 'tfds:conll2003' and not is_own_file:
        return _read_conll_of_tfds(config, split)
    path = split_file(
        config, _FILES[split], f"conll2003/{split.replace('dev', 'validation')}",
        "the folder with eng.train and eng.testa, or the hub's data set",
        scored=split == 'dev', required=split != 'test')
    if not path:
        return None
    names: Sequence[str] = ()
    if table.format_of(path) in ('json', 'parquet'):
        if config.conll.document_context:
            raise InputError(f'{path} {_NO_DOCUMENTS}')
        names = table.class_names(path, 'ner_tags') or _TFDS_TAGS
    return read_tagged(
        path, words='tokens', tags='ner_tags', max_malformed=config.data.max_malformed,
        names=names)


def _read_conll_of_tfds(config: ConfigDict, split: str) -> Tagged:
    """The sentences of a split of tensorflow-datasets."""
    if config.conll.document_context:
        raise InputError(f"config.data.source='tfds:conll2003' {_NO_DOCUMENTS}")
    sentences: list[Sentence] = []
    for record in tfds_records(config, 'conll2003', split):
        words = [word.decode() for word in record['tokens']]
        tags = [_TFDS_TAGS[i] for i in record['ner']]
        if words:
            sentences.append(Sentence(words, tags))
    return Tagged(sentences, f'tfds:conll2003:{split}')


def open_tagging(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Trained on `data.source`, scored on `data.eval_source` or on sentences held out of it.

    Any set of tags will do: entities are scored by F1, other tags by accuracy.
    """
    def read(path: str) -> Tagged:
        words = config.data.text
        tags = config.data.label
        if table.format_of(path) in ('json', 'parquet'):
            words = table.column_or_usual(path, words, _USUAL_WORDS, 'config.data.text')
            tags = table.column_or_usual(path, tags, _USUAL_TAGS, 'config.data.label')
        elif _TREEBANK.search(path) and (tags or '').lower() in _UNREAD_COLUMNS:
            raise InputError(
                f'config.data.label={tags}: of a treebank such as {path}, only upos is read; write '
                'words and other tags into a file of two columns')
        return read_tagged(
            path, words=words or '', tags=tags or '', max_malformed=config.data.max_malformed,
            names=label_names(config, path, tags or ''))

    train, dev = own_files(
        config, scored, read, Tagged.texts,
        'a file with a word and its tag in each line, a treebank (.conllu), JSON lines or Parquet')
    if train is not None:
        _say_tags(train, dev)
    return _tagging_task(config, scored, train, {'dev': dev})


def _say_tags(train: Tagged, dev: Tagged) -> None:
    """Says how frequent the tags are, and which occur only in evaluation."""
    counts = Counter(train.tags)
    by_count = sorted(counts, key=lambda tag: (-counts[tag], tag))
    shown = [f'{tag} {counts[tag]:,}' for tag in by_count[:20]]
    say(f"{counted(len(train), 'sentence')}, {counted(len(train.tags), 'word')}; tags: "
        + ', '.join(shown))
    if are_entities(counts):
        of_types: Counter[str] = Counter()
        for tag, number in counts.items():
            of_types[tag.partition('-')[2]] += number
        del of_types['']
        warn_of_rare(of_types, 'types of entities', 'word')
    else:
        warn_of_rare(counts, 'tags', 'word')
    unseen = sorted(set(dev.tags) - set(train.tags))
    if unseen:
        say(f"note: {', '.join(unseen[:10])} occur only in evaluation and count as errors")


def _tagging_task(
    config: ConfigDict, scored: ScoredModel | None, train: Tagged | None,
    evaluated: Mapping[str, Tagged],
) -> LabelledTask:
    """The task on sentences to train on and those of each split to score; 'dev' is the main one."""
    labels = TaggerLabels.of(scored, train or evaluated['dev'])
    _warn_of_accuracy(labels)
    scored_tags = itertools.chain.from_iterable(examples.tags for examples in evaluated.values())
    warn_of_alike({*labels.names, *scored_tags}, 'tags')
    for examples in (*evaluated.values(), train):
        if examples is not None:
            _check_tags(examples, labels, config.task, is_training=scored is None)
    tokenization = open_tokenization(config)
    tagger = _Tagger.of(config)

    train_units = None
    if train is not None:
        train_units = TaggedSet.cut(config, tokenization, labels, 'train', train).units()
    sets: list[EvalSet] = []
    for split, examples in evaluated.items():
        tagged_set = TaggedSet.cut(config, tokenization, labels, split, examples)
        sets.append(EvalSet(tagged_set.prefix, tagged_set.units(), tagged_set.results))
    baseline = _majority_baseline(
        labels.metric, (train or evaluated['dev']).tags, evaluated['dev'].tags)
    return LabelledTask(
        config, tokenization, train=train_units, evaluated=tuple(sets), metric=labels.metric,
        labels=labels.names, head=tagger.head, frozen=tagger.frozen,
        arguments={'num_outputs': len(labels.names), **tagger.features},
        inference=tagger.features, majority_baseline=baseline)


class _Tagger(NamedTuple):
    """The trained part: a whole model, or a tagger on the outputs of a frozen encoder.

    Attributes:
      head: what kind of head it has.
      frozen: a pattern of the parameters that are not trained.
      features: {'features': which outputs of the encoder are the tagger's input}, or {}.
    """

    head: str = 'token_classification'
    frozen: str = ''
    features: Mapping[str, str] = {}

    @classmethod
    def of(cls, config: ConfigDict) -> _Tagger:
        """The one that the config asks for.

        Raises:
          InputError: its input would be a layer that the encoder lacks.
        """
        features = config[config.task].features
        if not features:
            return cls()
        if features == 'second_to_last' and model_sizes(config)['num_layers'] < 2:
            raise InputError(
                f"config.{config.task}.features={features!r} needs two layers: choose 'last'")
        return cls('feature_tagger', '^bert/', {'features': features})


@dataclasses.dataclass(frozen=True)
class TaggerLabels:
    """The labels of a tagger, and what they mean.

    Attributes:
      names: by id.
      meant: what they mean as marks of entities (`entity_tags`); {} if they mark none.
      iob2: whether the model is known to learn, or to have learned, IOB2.
    """

    names: tuple[str, ...]
    meant: Mapping[str, str]
    iob2: bool

    @classmethod
    def of(cls, scored: ScoredModel | None, examples: Tagged) -> TaggerLabels:
        """The labels of the model that is scored, if it has any, else the tags of examples."""
        names = examples.labels
        if scored and scored.labels:
            names = scored.labels
        is_from_elsewhere = scored is not None and not scored.trained
        return cls(names, entity_tags(names), iob2=not is_from_elsewhere)

    @property
    def metric(self) -> str:
        """The metric that picks the best evaluation."""
        return 'f1' if self.meant else 'accuracy'

    def ids(self, tags: Iterable[str], unknown: int) -> np.ndarray:
        """[W] ids of tags; `unknown` for tags that are no label."""
        id_of = {name: i for i, name in enumerate(self.names)}
        ids = [id_of.get(tag, unknown) for tag in tags]
        return np.array(ids, np.int32)


def _warn_of_accuracy(labels: TaggerLabels) -> None:
    """Warns if labels look like entities and are scored by accuracy."""
    if labels.metric == 'f1':
        return
    if any(map(_looks_like_entity, labels.names)):
        odd = _other_than_entities(labels.names)
        say('warning: scored by accuracy, not by F1 of entities, because not every tag marks one: '
            f"{', '.join(odd[:10])}; for F1, write tags as B-TYPE and I-TYPE")


def _looks_like_entity(tag: str) -> bool:
    return tag == 'O' or tag.startswith(('B-', 'I-'))


def _other_than_entities(tags: Iterable[str]) -> list[str]:
    """The tags that are no marks of entities in IOB2 or IOBES."""
    return [tag for tag in tags if not _ENTITY_TAG.fullmatch(tag)]


def _check_tags(
    examples: Tagged, labels: TaggerLabels, task: str, *, is_training: bool
) -> None:
    """Refuses tags that share nothing with the labels, or that are no entities and should be.

    Raises:
      InputError: the tags are of another kind than the labels.
    """
    tags = set(examples.tags)
    if tags == {'O'}:
        say(f'warning: {examples.source} has no tag but O: every score but accuracy will be 0')
        return
    if labels.meant and are_entities(tags):
        known_types = entity_types(labels.meant.values())
        check_labels_known(
            examples.source, entity_types(tags), known_types, is_training=is_training)
    else:
        check_labels_known(
            examples.source, tags - {'O'}, set(labels.names) - {'O'}, is_training=is_training)
    if labels.metric != 'f1' and task != 'conll':
        return
    odd = sorted(_other_than_entities(tags))
    if odd:
        raise InputError(
            f'{examples.source} has tags such as {odd[0]!r}, the model entities '
            f"({', '.join(labels.names[:4])}), so that no F1 of entities can be computed: write "
            'its tags as B-TYPE, I-TYPE and O')


def _majority_baseline(
    metric: str, train_tags: Sequence[str], dev_tags: Sequence[str]
) -> dict[str, float]:
    """The metric if all words get one tag: O for entities, else the most frequent one."""
    if metric == 'f1':
        return {'f1': 0.0}
    return scores_of_one_answer(
        most_frequent(train_tags), np.array(dev_tags),
        lambda tags, truth: {'accuracy': accuracy(tags, truth)})


@dataclasses.dataclass(frozen=True)
class TaggedSet:
    """Sentences in windows of tokens, with the scores and the file of their predictions.

    Attributes:
      split: begins the name of the file.
      examples: the sentences.
      labels: of the tagger.
      windows: in which each word is scored once.
    """

    split: str
    examples: Tagged
    labels: TaggerLabels
    windows: WordWindows

    @classmethod
    def cut(
        cls, config: ConfigDict, tokenization: Tokenization, labels: TaggerLabels, split: str,
        examples: Tagged,
    ) -> TaggedSet:
        """Windows of the sentences, or of whole documents (`document_context`)."""
        texts = [sentence.words for sentence in examples.sentences]
        if config[config.task].document_context:
            texts = examples.documents
        tokenization.encode.keep([' '.join(words) for words in texts])
        tokenizer = tokenization.tokenizer
        windows = word_windows(
            [tokenizer.encode_words(words) for words in texts],
            max_length=config.data.max_seq_length, stand_in_id=tokenizer.vocab.stand_in_id,
            frame=tokenization.frame)
        return cls(split, examples, labels, windows)

    @property
    def prefix(self) -> str:
        """Of its metrics, empty for the main set."""
        if self.split == 'dev':
            return ''
        return f'{self.split}_'

    def units(self) -> Units:
        """The windows, in which the first piece of each word has its label."""
        # Only scored sets have tags that the model lacks, and `results` compares tags by name.
        label_W = self.labels.ids(self.examples.tags, unknown=0)
        word_T = self.windows.word_T
        return Units(self.windows.sequences, tokens={
            'token_labels': np.where(word_T >= 0, label_W[word_T], np.int32(0)),
            'token_weights': (word_T >= 0).astype(np.float32),
        })

    def results(self, outputs: Outputs) -> Results:
        """Scores, and the content of the file of predictions."""
        logits = self.windows.of_words(outputs['logits'])
        best_W = logits.argmax(axis=-1)
        predicted = self._by_sentence([self.labels.names[i] for i in best_W.tolist()])
        wanted = self._wanted(predicted)
        scores = self._scores(predicted, wanted)
        wanted_tags = itertools.chain.from_iterable(wanted)
        wanted_W = self.labels.ids(wanted_tags, unknown=len(self.labels.names))
        scores['loss'] = Classification.mean_loss(logits, wanted_W)
        return scores, {f'{self.split}_predictions.txt': self._table(wanted, predicted)}

    def _by_sentence(self, tags: Iterable[str]) -> list[list[str]]:
        """Tags of all words as a list for each sentence."""
        left = iter(tags)
        by_sentence: list[list[str]] = []
        for sentence in self.examples.sentences:
            by_sentence.append(list(itertools.islice(left, len(sentence.words))))
        return by_sentence

    def _wanted(self, predicted: Sequence[Sequence[str]]) -> list[list[str]]:
        """The reference; of entities, as the model writes it."""
        gold = self.examples.tags_by_sentence
        if self.labels.metric != 'f1':
            return gold
        return as_the_model_writes(
            gold, self.labels.meant, self._marks(predicted), iob2=self.labels.iob2)

    def _marks(self, predicted: Sequence[Sequence[str]]) -> list[list[str]]:
        """The marks of entities that predicted tags stand for."""
        meaning = self.labels.meant.__getitem__
        return [list(map(meaning, tags)) for tags in predicted]

    def _scores(
        self, predicted: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        """Scores of entities and the accuracy of tags; without entities, of tags alone."""
        predicted_tags = np.concatenate(predicted)
        wanted_tags = np.concatenate(wanted)
        of_tags = {'accuracy': accuracy(predicted_tags, wanted_tags)}
        if self.labels.metric != 'f1':
            return of_tags | {'macro_f1': macro_f1(predicted_tags, wanted_tags)}
        return conll_scores(self._marks(predicted), self.examples.tags_by_sentence) | of_tags

    def _table(
        self, wanted: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
    ) -> str:
        """Input of conlleval: lines of `word gold predicted`, an empty one after each sentence."""
        lines: list[str] = []
        for sentence, tags, others in zip(self.examples.sentences, wanted, predicted, strict=True):
            for word, tag, other in zip(sentence.words, tags, others, strict=True):
                shown = '_'.join(word.split()) or _NO_WORD  # white space would make columns
                lines.append(f'{shown} {tag} {other}\n')
            lines.append('\n')
        return ''.join(lines)


class Sentence(NamedTuple):
    """Words, a tag for each, and the number of the document that the sentence belongs to."""

    words: list[str]
    tags: list[str]
    document: int = 0


@dataclasses.dataclass(frozen=True)
class Tagged:
    """Sentences in the order of a file. Tags of entities are in IOB2, whatever the file has."""

    sentences: list[Sentence]
    source: str

    def __len__(self) -> int:
        return len(self.sentences)

    def texts(self) -> list[str]:
        """The words of each sentence, joined."""
        return [' '.join(sentence.words) for sentence in self.sentences]

    @property
    def tags(self) -> list[str]:
        """The tags [W] of all words."""
        return _all_tags(self.sentences)

    @property
    def tags_by_sentence(self) -> list[list[str]]:
        """The tags of each sentence."""
        return [sentence.tags for sentence in self.sentences]

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a tagger: O, then B- and I- of each type that occurs, sorted by type.

        If the tags are not entities: those that occur, sorted, with O first.
        """
        tags = set(self.tags)
        if are_entities(tags):
            labels = ['O']
            for name in sorted(entity_types(tags)):
                labels += [f'B-{name}', f'I-{name}']
            return tuple(labels)
        return tuple(sorted(tags, key=lambda tag: (tag != 'O', tag)))

    @property
    def documents(self) -> list[list[str]]:
        """The words of each document."""
        documents: list[list[str]] = []
        by_document = itertools.groupby(self.sentences, key=lambda sentence: sentence.document)
        for _, sentences in by_document:
            words: list[str] = []
            for sentence in sentences:
                words += sentence.words
            documents.append(words)
        return documents

    def take(self, rows: Iterable[int]) -> Tagged:
        """Some of the sentences."""
        return Tagged([self.sentences[i] for i in rows], self.source)


def _all_tags(sentences: Iterable[Sentence]) -> list[str]:
    """The tags of all words."""
    tags: list[str] = []
    for sentence in sentences:
        tags += sentence.tags
    return tags


def read_tagged(
    path: str, *, words: str = '', tags: str = '', names: Sequence[str] = (),
    max_malformed: float = 0.01,
) -> Tagged:
    """All sentences of one file.

    Args:
      path: JSON or Parquet with a row for each sentence, which has a list of words and one of tags;
        all are one document. Or a treebank, `.conllu`, of which the parts of speech (UPOS) are the
        tags. Or lines that begin with a word and end with its tag, in as many columns as the first
        line has, with empty lines between sentences (`read_word_lines`). Text files may be
        compressed.
      words, tags: columns of the JSON or Parquet file.
      names: names of its tags that are numbers.
      max_malformed: share of the rows that may be malformed; one row always may, unless this is 0.

    Raises:
      InputError: the file cannot be read, has no tags or words, or has too many malformed rows.
    """
    if table.format_of(path) in ('json', 'parquet'):
        sentences = _json_sentences(path, words, tags, names, max_malformed)
    elif _TREEBANK.search(path):
        sentences = _treebank_sentences(path, max_malformed)
    else:
        sentences = _column_sentences(path, max_malformed)
    return Tagged(_in_iob2(sentences, path), path)


def _in_iob2(sentences: list[Sentence], path: str) -> list[Sentence]:
    """The sentences with tags of entities in IOB2. Prints the first change of a tag."""
    meant = entity_tags(_all_tags(sentences))
    if not meant:
        return sentences
    result: list[Sentence] = []
    is_said = False
    for sentence in sentences:
        marks = [meant[tag] for tag in sentence.tags]
        tags = to_iob2(marks)
        result.append(sentence._replace(tags=tags))
        if not is_said and tags != sentence.tags:
            _say_first_change(sentence.tags, tags, path)
            is_said = True
    return result


def _say_first_change(before: Sequence[str], after: Sequence[str], path: str) -> None:
    """Says which tag of a sentence is the first that IOB2 changes."""
    for old, new in zip(before, after):
        if old != new:
            say(f'note: the tags of {path} are read as IOB2: the first change is from {old} to '
                f'{new}')
            return


def _treebank_sentences(path: str, max_malformed: float) -> list[Sentence]:
    """The sentences of a file in CoNLL-U (https://universaldependencies.org/format.html).

    Raises:
      InputError: as `read_tagged`; or the file has no words, which some licenses keep out.
    """
    reader = _ColumnReader(path)
    unended: list[int] = []  # lines of words before which no empty line ends a sentence
    before = ''  # id of the word before
    for line, text in table.lines_of_words(path):
        cells = text.split('\t')
        if not text.strip():
            reader.end_sentence()
            before = ''
        elif text.startswith('#') or _NO_WORD_OF_A_TREEBANK.fullmatch(cells[0]):
            continue
        elif len(cells) != _TREEBANK_COLUMNS:
            reader.faults.append(
                f'line {line}: columns: {len(cells)}, where CoNLL-U has {_TREEBANK_COLUMNS}')
        elif cells[3] in ('', _NOTHING):
            reader.faults.append(f'line {line}: no part of speech (UPOS, column 4)')
        else:
            if cells[0] == '1' and before != '0' and reader.end_sentence():
                unended.append(line)
            reader.add_word([cells[1], cells[3]], line)
            before = cells[0]
    sentences = reader.finished(max_malformed)
    if unended:  # of files that were put together
        say(f"note: {path}: in {counted(len(unended), 'line')}, such as line {unended[0]}, words "
            'count from 1 again without an empty line before them: a sentence begins there')
    if all(set(sentence.words) == {_NOTHING} for sentence in sentences):
        raise InputError(f'{path} holds {_NOTHING} in the place of every word: its README says how '
                         'to add the text')
    return sentences


def _column_sentences(path: str, max_malformed: float) -> list[Sentence]:
    """The sentences of a file with a word and its tag in each line."""
    reader = _ColumnReader(path)
    for line, cells in read_word_lines(path):
        if not cells:
            reader.end_sentence()
        elif cells[0] == DOCUMENT_START:
            reader.end_document()
        else:
            reader.add_word(cells, line)
    return reader.finished(max_malformed)


class _ColumnReader:
    """Gathers words with their tags into sentences.

    Attributes:
      sentences: those that have ended.
      faults: of lines that are left out.
    """

    def __init__(self, path: str):
        self.sentences: list[Sentence] = []
        self.faults: list[str] = []
        self._path = path
        self._num_columns = 0  # of the first line
        self._document = 0
        self._words: list[str] = []
        self._tags: list[str] = []

    def add_word(self, cells: Sequence[str], line: int) -> None:
        """Adds a word to the sentence.

        Raises:
          InputError: the file has no tags, or has those of parts of words.
        """
        if not self._num_columns:
            self._num_columns = len(cells)
        if self._num_columns < 2:
            raise InputError(
                f'{self._path} has one column: there are no tags to learn or to score; expected a '
                'word and its tag in each line')
        if len(cells) != self._num_columns:
            self.faults.append(
                f'line {line}: columns: {len(cells)}, where the first line has '
                f'{self._num_columns}')
            return
        if not cells[0]:
            self.faults.append(f'line {line}: no word before its first TAB')
            return
        if cells[-1] == _IGNORED:
            raise InputError(f'{self._path}, line {line} {_OF_PIECES}')
        self._words.append(cells[0])
        self._tags.append(cells[-1])

    def end_sentence(self) -> bool:
        """Ends the sentence, if it has words; whether it had."""
        if not self._words:
            return False
        self.sentences.append(Sentence(self._words, self._tags, self._document))
        self._words = []
        self._tags = []
        return True

    def end_document(self) -> None:
        """Ends the sentence and the document."""
        self.end_sentence()
        self._document += 1

    def finished(self, max_malformed: float) -> list[Sentence]:
        """All sentences, at the end of the file.

        Raises:
          InputError: more than this share of the words is malformed.
        """
        self.end_sentence()
        num_words = sum(len(sentence.words) for sentence in self.sentences)
        table.check_malformed(self._path, num_words, self.faults, max_malformed)
        return self.sentences


def _json_sentences(
    path: str, word_column: str, tag_column: str, names: Sequence[str], max_malformed: float
) -> list[Sentence]:
    """The sentences of a file with a list of words and one of tags in each row."""
    def parse(cells: list[Any]) -> Sentence:
        words, tags = cells
        are_lists = isinstance(words, list) and isinstance(tags, list)
        if not are_lists or len(words) != len(tags):
            raise table.Malformed(
                f"'{word_column}' and '{tag_column}' are not two lists of one length")
        if not all(isinstance(word, str) for word in words):
            raise table.Malformed('a word is no string')
        words = table.texts_of(words)
        labels = list(map(table.label_of, tags))
        if _IGNORED in labels:
            raise InputError(f"'{tag_column}' {_OF_PIECES}")
        named = [table.named(label, names) for label in labels]
        return Sentence(words, named)

    rows = table.read_table(path, [word_column, tag_column], parse, max_malformed=max_malformed)
    # A sentence without words is not malformed, but there is nothing to learn from it.
    sentences = [sentence for sentence in rows.values if sentence.words]
    if not sentences:
        raise InputError(f'{path} holds no words: copy it again')
    if not names and all(map(str.isdigit, _all_tags(sentences))):
        say(f'warning: the tags of {path} are numbers, of which no entities can be made: name '
            'them with --config.data.label_names=O,B-PER,I-PER,... before you train, as a run '
            'keeps the numbers and one with names needs another --workdir')
    return sentences
