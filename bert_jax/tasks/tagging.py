"""A tag for each word: CoNLL-2003's named entities (paper section 5.3), or your own tags.

From top to bottom: the tasks; readers of sentences with a tag for each word (CoNLL-2003: Tjong Kim
Sang and De Meulder, 2003); windows of tokens in which every word is scored once; precision, recall
and F1 of entities as the `conlleval` script counts them.

Tags of entities are O, B-TYPE and I-TYPE, in IOB1 or IOB2: an entity begins at every B-, and at an
I- that does not follow a tag of its type in its sentence. IOBES also has E- (the last word) and S-
(the only word), after which an entity begins, too; `entity_tags` reads other spellings of these.

    W: words, P: word pieces of all words, T: tokens of all windows
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

from bert_jax.config import model_sizes
from bert_jax.data import table
from bert_jax.data.packing import Units
from bert_jax.data.pairs import Encode, Sequences, make_sequences, ranges, tile
from bert_jax.heads.classification import Classification
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.hosts import say
from bert_jax.tasks import labelled
from bert_jax.tasks.labelled import LabelledTask, ScoredModel
from bert_jax.tasks.labels import check_labels_known, label_names
from bert_jax.tasks.metrics import accuracy, macro_f1
from bert_jax.tasks.sources import own_files, split_file, tfds_records


def open_conll(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Trained on train, scored on dev and, if there is one, on test (`test_f1` and so on)."""
    d = config.data

    def read(split: str) -> Tagged | None:
        if d.source == 'tfds:conll2003' and not (split == 'dev' and d.eval_source):
            if config.conll.document_context:
                raise InputError(f"config.data.source='tfds:conll2003' {_NO_DOCUMENTS}")
            return Tagged([
                Sentence([word.decode() for word in r['tokens']], [_TFDS_TAGS[i] for i in r['ner']])
                for r in tfds_records(config, 'conll2003', split) if len(r['tokens'])
            ], f'tfds:conll2003:{split}')
        path = split_file(
            config, _FILES[split], f"conll2003/{split.replace('dev', 'validation')}",
            "the folder with eng.train and eng.testa, or the hub's data set",
            scored=split == 'dev', required=split != 'test')
        if not path:
            return None
        in_lists = table.format_of(path) in ('json', 'parquet')
        if in_lists and config.conll.document_context:
            raise InputError(f'{path} {_NO_DOCUMENTS}')
        return read_tagged(
            path, words='tokens', tags='ner_tags', max_malformed=d.max_malformed,
            names=(table.class_names(path, 'ner_tags') or _TFDS_TAGS) if in_lists else ())

    train = read('train') if scored is None else None
    splits = ('dev',) if d.eval_source else ('dev', 'test')
    return _task(config, scored, train, {
        split: examples for split in splits if (examples := read(split))})


# Names of columns that are read where there is no column of the default name, nor another of these.
_USUAL_WORDS = ('tokens', 'words', 'text', 'sentence')
_USUAL_TAGS = ('tags', 'ner_tags', 'pos_tags', 'ner', 'label', 'labels')


def open_tagging(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Trained on `data.source`, scored on `data.eval_source` or on sentences held out of it.

    Any set of tags will do: entities are scored by F1, other tags by accuracy.
    """
    d = config.data

    def read(path: str) -> Tagged:
        words, tags = d.text, d.label
        if table.format_of(path) in ('json', 'parquet'):
            words = table.column_or_usual(path, words, _USUAL_WORDS, 'config.data.text')
            tags = table.column_or_usual(path, tags, _USUAL_TAGS, 'config.data.label')
        return read_tagged(path, words=words, tags=tags, max_malformed=d.max_malformed,
                           names=label_names(config, path, tags))

    train, dev = own_files(
        config, scored, read, lambda examples: [' '.join(s.words) for s in examples.sentences],
        'a file with a word and its tag in each line, JSON lines or Parquet')
    if train is not None:
        counts = sorted(Counter(train.tags).items(), key=lambda item: (-item[1], item[0]))
        say(f'{len(train):,} sentences, {len(train.tags):,} words; tags: '
            + ', '.join(f'{tag} {n:,}' for tag, n in counts[:20]))
        if unseen := sorted(set(dev.tags) - set(train.tags)):
            say(f"note: {', '.join(unseen[:10])} occur only in evaluation and count as errors")
    return _task(config, scored, train, {'dev': dev})


def _task(
    config: ConfigDict, scored: ScoredModel | None, train: Tagged | None,
    evaluated: Mapping[str, Tagged],
) -> LabelledTask:
    section = config[config.task]
    labels = scored.labels if scored and scored.labels else (train or evaluated['dev']).labels
    meant = entity_tags(labels)
    metric = 'f1' if meant else 'accuracy'
    if metric == 'accuracy' and any(tag == 'O' or tag[:2] in ('B-', 'I-') for tag in labels):
        odd = [tag for tag in labels if not _ENTITY_TAG.fullmatch(tag)]
        say('warning: scored by accuracy, not by F1 of entities, because not every tag marks one: '
            f"{', '.join(odd[:10])}; for F1, write tags as B-TYPE and I-TYPE")
    for examples in (*evaluated.values(), *([train] if train else [])):
        tags = set(examples.tags)
        if tags == {'O'}:
            say(f'warning: {examples.source} has no tag but O: every score but accuracy will be 0')
            continue
        if meant and are_entities(tags):
            check_labels_known(examples.source, _types(tags), _types(meant.values()))
        else:
            check_labels_known(examples.source, tags - {'O'}, set(labels) - {'O'})
        odd = sorted(tag for tag in tags if not _ENTITY_TAG.fullmatch(tag))
        if odd and (metric == 'f1' or config.task == 'conll'):
            raise InputError(
                f'{examples.source} has tags such as {odd[0]!r}, the model entities '
                f"({', '.join(labels[:4])}), so that no F1 of entities can be computed: write its "
                'tags as B-TYPE, I-TYPE and O')
    t = labelled.open_tokenization(config)
    where = f'config.{config.task}.features={section.features!r}'
    if section.features == 'second_to_last' and model_sizes(config)['num_layers'] < 2:
        raise InputError(f"{where} needs two layers: choose 'last'")
    ids = {label: i for i, label in enumerate(labels)}
    is_from_elsewhere = scored is not None and not scored.trained  # a run has learned IOB2

    def cut(examples: Tagged) -> tuple[Units, np.ndarray]:
        """Units, and the words that `word_windows` gives for their tokens."""
        texts = [s.words for s in examples.sentences]
        if section.document_context:
            texts = [
                [word for s in document for word in s.words]
                for _, document in itertools.groupby(examples.sentences, key=lambda s: s.document)]
        sequences, word_T = word_windows(
            texts, t.encode, max_length=config.data.max_seq_length, unk_id=t.tokenizer.vocab.unk_id,
            **t.tokenizer.vocab.ends)
        # Only scored sets have tags that the model lacks, and `results` compares tags by name.
        label_W = np.array([ids.get(tag, 0) for tag in examples.tags], np.int32)
        return Units(sequences, tokens={
            'token_labels': np.where(word_T >= 0, label_W[word_T], np.int32(0)),
            'token_weights': (word_T >= 0).astype(np.float32),
        }), word_T

    def eval_set(split: str, examples: Tagged) -> labelled.EvalSet:
        units, word_T = cut(examples)
        in_words, gold = word_T >= 0, [s.tags for s in examples.sentences]

        def results(outputs: labelled.Outputs) -> labelled.Results:
            best = np.zeros(len(examples.tags), np.int64)
            best[word_T[in_words]] = outputs['logits'][in_words].argmax(axis=-1)
            all_tags = iter([labels[i] for i in best.tolist()])
            tags = [list(itertools.islice(all_tags, len(sentence))) for sentence in gold]
            wanted = gold
            if metric == 'f1':
                marks = [[meant[tag] for tag in sentence] for sentence in tags]
                wanted = _as_the_model_writes(gold, meant, marks, iob2=not is_from_elsewhere)
                scores = conll_scores(marks, gold)
            pair = np.concatenate(tags), np.concatenate(wanted)
            if metric == 'f1':
                scores['accuracy'] = accuracy(*pair)
            else:
                scores = {'accuracy': accuracy(*pair), 'macro_f1': macro_f1(*pair)}
            # conlleval's input: lines of `word gold predicted`, an empty line after each sentence.
            lines = [
                ''.join(f'{word if word.strip() else _NO_WORD} {tag} {predicted}\n'
                        for word, tag, predicted in zip(*columns))
                for columns in zip((s.words for s in examples.sentences), wanted, tags)]
            known_W = np.array([ids.get(tag, len(labels)) for tag in pair[1].tolist()])
            scores['loss'] = Classification.mean_loss(
                outputs['logits'][in_words], known_W[word_T[in_words]])
            return scores, {f'{split}_predictions.txt': ''.join(x + '\n' for x in lines)}

        return labelled.EvalSet('' if split == 'dev' else f'{split}_', units, results)

    features = {'features': section.features} if section.features else {}
    majority_baseline = {'f1': 0.0}  # of tagging all words O
    if metric == 'accuracy':
        (most, _), = Counter((train or evaluated['dev']).tags).most_common(1)
        dev_tags = evaluated['dev'].tags
        majority_baseline = {'accuracy': dev_tags.count(most) / len(dev_tags)}
    return LabelledTask(
        config, t, train=None if train is None else cut(train)[0],
        evaluated=tuple(eval_set(*item) for item in evaluated.items()),
        metric=metric, labels=labels,
        head='feature_tagger' if features else 'token_classification',
        frozen='^bert/' if features else '', arguments={'num_outputs': len(labels)} | features,
        inference=features, majority_baseline=majority_baseline)


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

    @property
    def tags(self) -> list[str]:
        """The tags [W] of all words."""
        return [tag for sentence in self.sentences for tag in sentence.tags]

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a tagger: O, then B- and I- of each type that occurs, sorted by type.

        If the tags are not entities: those that occur, sorted, with O first.
        """
        tags = set(self.tags)
        if are_entities(tags):
            types = sorted({tag[2:] for tag in tags - {'O'}})
            return ('O', *(f'{kind}-{name}' for name in types for kind in 'BI'))
        return tuple(sorted(tags, key=lambda tag: (tag != 'O', tag)))

    def take(self, rows: Iterable[int]) -> Tagged:
        """Some of the sentences."""
        return Tagged([self.sentences[i] for i in rows], self.source)


_NO_DOCUMENTS = ('has lost the documents; name the folder of the original files, or use '
                 'configs/conll.py:sentences')
# File names in the original distribution, then in its IOB2 editions.
_FILES = {
    'train': ('eng.train', 'train.txt'),
    'dev': ('eng.testa', 'valid.txt', 'dev.txt', 'testa.txt'),
    'test': ('eng.testb', 'test.txt', 'testb.txt'),
}
# Tags by id in the conll2003 of tensorflow-datasets and of the hub.
_TFDS_TAGS = ('O', 'B-PER', 'I-PER', 'B-ORG', 'I-ORG', 'B-LOC', 'I-LOC', 'B-MISC', 'I-MISC')
_DOCUMENT_START = '-DOCSTART-'
_NO_WORD = '[UNK]'  # stands for an empty word where words are in columns, as in the model's input
# Only spaces and tabs separate columns; other Unicode white space may be a word of the text.
_CELL = re.compile(r'[^ \t]+')
_ENTITY_TAG = re.compile(r'O|[BIES]-\S+')


def read_tagged(
    path: str, *, words: str = '', tags: str = '', names: Sequence[str] = (),
    max_malformed: float = 0.01,
) -> Tagged:
    """All sentences of one file.

    Args:
      path: JSON or Parquet with a row for each sentence, which has a list of words and one of tags;
        all are one document. Or lines that begin with a word and end with its tag, in as many
        columns (separated by spaces or tabs) as the first line has, with empty lines between
        sentences. Text files may be compressed.
      words, tags: columns of the JSON or Parquet file.
      names: names of its tags that are numbers.
      max_malformed: share of the rows that may be malformed; one row always may, unless this is 0.

    Raises:
      InputError: the file cannot be read, has no tags or words, or has too many malformed rows.
    """
    if table.format_of(path) in ('json', 'parquet'):
        sentences = _json_sentences(path, words, tags, names, max_malformed)
    else:
        sentences = _column_sentences(path, max_malformed)
    if meant := entity_tags(tag for s in sentences for tag in s.tags):
        read = [s._replace(tags=to_iob2([meant[tag] for tag in s.tags])) for s in sentences]
        changed = ((old, new) for x, y in zip(sentences, read) for old, new in zip(x.tags, y.tags)
                   if old != new)
        if first := next(changed, None):
            say(f'note: the tags of {path} are read as IOB2: the first change is from {first[0]} '
                f'to {first[1]}')
        sentences = read
    return Tagged(sentences, path)


def _column_sentences(path: str, max_malformed: float) -> list[Sentence]:
    sentences: list[Sentence] = []
    words: list[str] = []
    tags: list[str] = []
    faults: list[str] = []
    width = document = 0
    for line, text in itertools.chain(table.lines(path), [(0, '')]):
        cells = _CELL.findall(text)
        if not cells or cells[0] == _DOCUMENT_START:
            if words:
                sentences.append(Sentence(words, tags, document))
                words, tags = [], []
            document += len(cells) > 0
            continue
        width = width or len(cells)
        if width < 2:
            raise InputError(
                f'{path} has one column: there are no tags to learn or to score; expected a word '
                'and its tag in each line')
        if len(cells) == width:
            words.append(cells[0])
            tags.append(cells[-1])
        else:
            faults.append(f'line {line}: columns: {len(cells)}, where the first line has {width}')
    table.check_malformed(path, sum(len(s.words) for s in sentences), faults, max_malformed)
    return sentences


def _json_sentences(
    path: str, words: str, tags: str, names: Sequence[str], max_malformed: float
) -> list[Sentence]:
    def parse(cells: list[Any]) -> Sentence:
        some, their = cells
        if not (isinstance(some, list) and isinstance(their, list) and len(some) == len(their)):
            raise table.Malformed(f"'{words}' and '{tags}' are not two lists of one length")
        if not all(isinstance(word, str) for word in some):
            raise table.Malformed('a word is no string')
        return Sentence(table.texts_of(some), [
            table.named(table.label_of(tag), names) for tag in their])

    rows = table.read_table(path, [words, tags], parse, max_malformed=max_malformed)
    # A sentence without words is not malformed, but there is nothing to learn from it.
    sentences = [sentence for sentence in rows.values if sentence.words]
    if not sentences:
        raise InputError(f'{path} holds no words: copy it again')
    if not names and all(tag.isdigit() for s in sentences for tag in s.tags):
        say(f'warning: the tags of {path} are numbers, of which no entities can be made: name '
            'them with --config.data.label_names=O,B-PER,I-PER,... before you train, as a run '
            'keeps the numbers and one with names needs another --workdir')
    return sentences


def word_windows(
    texts: Sequence[Sequence[str]], encode: Encode, *, max_length: int, cls_id: int, sep_id: int,
    unk_id: int,
) -> tuple[Sequences, np.ndarray]:
    """Windows of texts, in which every word is scored exactly once.

    A text is a sentence, or all sentences of a document one after the other. It is one window if it
    fits. A longer one is covered by windows of full length, evenly spaced and overlapping by at
    least half. Each word is scored in the window with the most context on the side where it has
    less: about a quarter of a window or more on both, or up to the end of the text. So nothing is
    dropped, and a word sees its document ("maximal document context" of paper section 5.3; all of
    it where it fits) for at most about twice the tokens of the text. (A window for every sentence,
    filled up with its neighbours, would give half a window on both sides, but cost `max_length`
    tokens a sentence: 6.5 times the text of the training file at 128, 26 times at 512.) A window
    may end inside a word, but starts at the beginning of one.

    Words are tokenized one by one. One that yields no piece (BERT's tokenizer removes control
    characters) becomes [UNK], so that it is scored like any other.

    Args:
      texts: the words of each text, one or more.
      encode: tokenizer; for entities, of a cased vocabulary.
      max_length: tokens of a window, [CLS] and [SEP] included.
      cls_id, sep_id, unk_id: of the vocabulary.

    Returns:
      Windows, [CLS] pieces [SEP], all segment 0; and [T] int32: at the first piece of a word that
      is scored in this window, the word's index among all words, else -1.
    """
    ids_P, counts_W = encode([word for text in texts for word in text])
    empty = np.flatnonzero(counts_W == 0)
    ids_P = np.insert(np.asarray(ids_P, np.int32), (np.cumsum(counts_W) - counts_W)[empty], unk_id)
    counts_W[empty] = 1
    # Where each word's pieces begin; bounds of the texts, in pieces.
    first_W = np.cumsum(counts_W) - counts_W
    bounds = np.append(first_W, len(ids_P))[np.cumsum([0, *map(len, texts)])]
    _, starts, ends, cores = tile(bounds, max_length - 2)
    # The window that scores a word is the last whose core begins before or at its first piece.
    window_W = np.searchsorted(cores, first_W, side='right') - 1
    used, window_W = np.unique(window_W, return_inverse=True)  # others: only tails of huge words
    starts, ends = first_W[np.searchsorted(first_W, starts[used])], ends[used]

    counts = ends - starts
    sequences = make_sequences(
        (ids_P[ranges(starts, counts)], counts), None, max_length=max_length, cls_id=cls_id,
        sep_id=sep_id)
    # Each word's one place among the tokens, after the [CLS] of its window.
    word_T = np.full(len(sequences.ids), -1, np.int32)
    word_T[sequences.offsets[window_W] + 1 + first_W - starts[window_W]] = np.arange(len(first_W))
    return sequences, word_T


# What the letters of tags mean in IOB1 and IOB2, IOBES (BMES has M) and BILOU: the beginning, the
# inside, the end of an entity, and one of a single word.
_LETTERS = {'B': 'B', 'I': 'I', 'M': 'I', 'E': 'E', 'L': 'E', 'S': 'S', 'U': 'S'}
_SPELLINGS = (re.compile(r'(?P<letter>[BIMELSU])[-_](?P<type>\S+)', re.IGNORECASE),
              re.compile(r'(?P<type>\S+)[-_](?P<letter>[BIMELSU])', re.IGNORECASE))


def entity_tags(tags: Iterable[str]) -> dict[str, str]:
    """What tags mean as marks of entities: {tag: O, B-TYPE, I-TYPE, E-TYPE or S-TYPE}.

    Read are IOB1, IOB2, IOBES, BMES, BILOU and IO, with the letter before or after the type and in
    either case: B-PER, b-per, B_PER, PER-B. {} if a tag is none of these, or all are O.
    """
    names = set(tags)
    outside = {tag for tag in names if tag in ('O', 'o')}
    for spelling in _SPELLINGS if names - outside else ():
        found = {tag: spelling.fullmatch(tag) for tag in names - outside}
        if all(found.values()):
            return dict.fromkeys(outside, 'O') | {
                tag: f"{_LETTERS[match['letter'].upper()]}-{match['type']}"
                for tag, match in found.items() if match}
    return {}


def are_entities(tags: Iterable[str]) -> bool:
    """Whether tags mark entities; see `entity_tags`."""
    return bool(entity_tags(tags))


def _types(tags: Iterable[str]) -> set[str]:
    return {tag[2:] for tag in tags if tag != 'O'}


def to_iob2(tags: Sequence[str]) -> list[str]:
    """The tags of a sentence, values of `entity_tags`, in IOB2: every entity begins with B-.

    An entity begins at every B- and S-, after every E- and S-, and where the type changes, as
    seqeval and conlleval have it.
    """
    def iob2(before: str, tag: str) -> str:
        begins = tag[0] in 'BS' or before[0] in 'ES' or tag[1:] != before[1:]
        return ('B' if begins else 'I') + tag[1:]

    return [tag if tag == 'O' else iob2(before, tag)
            for before, tag in itertools.pairwise(['O', *tags])]


def _as_the_model_writes(
    gold: Sequence[Sequence[str]], meant: Mapping[str, str], predicted: Sequence[Sequence[str]], *,
    iob2: bool,
) -> list[list[str]]:
    """The reference as a perfect model would tag it, so that tags can be compared one by one.

    Args:
      gold: tags of each sentence in IOB2.
      meant: `entity_tags` of the model's labels, which tell its scheme, but for IOB1 and IOB2.
      predicted: what it predicted, as values of `meant`; they tell these two apart.
      iob2: whether it is known to have learned IOB2.
    """
    begins = Counter(
        tag[0] for tags in predicted for before, tag in itertools.pairwise(['O', *tags])
        if tag != 'O' and tag[1:] != before[1:])
    has = {mark: label for label, mark in meant.items()}
    only_b_and_i = {mark[0] for mark in has} == set('OBI')
    is_iob1 = only_b_and_i and not iob2 and begins['I'] > begins['B']
    if is_iob1:
        say('note: the model begins entities with I-, as in IOB1: so does the reference here, for '
            'accuracy and loss')

    def written(tags: Sequence[str]) -> list[str]:
        result = list(tags)
        ends: dict[str, int] = {}  # where the last entity of each type ends
        for name, begin, end in entity_spans(tags):
            first = 'IB' if is_iob1 and ends.get(name) != begin else 'BI'
            choices = ['I'] * (end - begin)
            choices[-1] = 'EI'
            choices[0] = 'S' * (end - begin == 1) + first
            for i, letters in enumerate(choices, begin):
                result[i] = next(
                    (has[mark] for letter in letters if (mark := f'{letter}-{name}') in has),
                    result[i])
            ends[name] = end
        return [has.get(tag, tag) if tag == 'O' else tag for tag in result]

    return [written(tags) for tags in gold]


def entity_spans(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(type, first word, word after the last) of the entities of a sentence, in order."""
    spans: list[tuple[str, int, int]] = []
    for i, tag in enumerate(to_iob2(tags)):
        if tag[0] == 'B':
            spans.append((tag[2:], i, i + 1))
        elif tag[0] == 'I':
            spans[-1] = (*spans[-1][:2], i + 1)
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
    right, found, wanted = counters = Counter[str](), Counter[str](), Counter[str]()
    words = same = 0
    for mine, theirs in zip(predicted, gold, strict=True):
        same += sum(a == b for a, b in zip(mine, theirs, strict=True))
        words += len(theirs)
        spans = set(entity_spans(mine)), set(entity_spans(theirs))
        for counter, some in zip(counters, (spans[0] & spans[1], *spans)):
            counter.update(name for name, _, _ in some)
    scores = _scores(right.total(), found.total(), wanted.total())
    scores['accuracy'] = same / max(words, 1)
    for name in sorted(found | wanted):
        of_type = _scores(right[name], found[name], wanted[name])
        scores |= {f'{name}/{key}': value for key, value in of_type.items()}
    return scores


def _scores(correct: int, predicted: int, gold: int) -> dict[str, float]:
    """Precision, recall and F1; 0 where undefined."""
    return {
        'precision': correct / max(predicted, 1),
        'recall': correct / max(gold, 1),
        'f1': 2.0 * correct / max(predicted + gold, 1),
    }
