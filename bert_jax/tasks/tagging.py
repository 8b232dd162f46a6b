"""A label for each word: CoNLL-2003's named entities (paper section 5.3), or your own tags."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from bert_jax.config import model_sizes
from bert_jax.labelled import conll
from bert_jax.labelled.conll import ConllExamples
from bert_jax.labelled.packing import Units
from bert_jax.labelled.word_windows import ConllWindows, conll_windows
from bert_jax.metrics.conll import are_entities, conll_scores, write_conll
from bert_jax.model.bilstm import FEATURES
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path
from bert_jax.runtime.hosts import say
from bert_jax.tasks.base import ScoredModel, TaskKind, register
from bert_jax.tasks.labelled import (
    EvalSet,
    LabelledData,
    LabelledTask,
    Outputs,
    check_labels_known,
    one_source,
    open_tokenization,
    own_files,
    refuse_eval_source,
    tfds_records,
)
from bert_jax.tasks.metrics import accuracy, macro_f1

_FIELDS: Mapping[str, object] = {
    # Neighbouring sentences of the document fill the window.
    'document_context': False,
    # Empty: fine-tuned; else features of a frozen encoder for a BiLSTM (paper table 7): one of
    # model.bilstm.FEATURES.
    'features': '',
}


def open_conll(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Trained on train, scored on dev, and on test where it is there (`test_f1` and so on)."""
    if scored is not None and config.data.eval_source:
        mine = conll.read_conll_file(
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
        'max_malformed': config.data.max_malformed,
    }
    train, dev = own_files(
        config, functools.partial(conll.read_tagged_file, **kind), conll.ConllExamples.sentences,
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
        say(f"note: {', '.join(unseen[:10])} occur in evaluation alone and count as errors")
    return _task(
        config, config.tagging, train.labels, train, {'dev': dev}, _metrics(train.labels))


def _metrics(tags: Sequence[str]) -> tuple[str, ...]:
    """What a model of these tags is scored by, whatever the file; the first picks the best."""
    return ('f1',) if are_entities(tags) else ('accuracy',)


def _task(
    config: ConfigDict, own: ConfigDict, labels: tuple[str, ...], train: ConllExamples | None,
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
    _check_features(config, own.features)

    def cut(examples: ConllExamples) -> ConllWindows:
        return conll_windows(
            examples, t.encode, labels, max_length=t.max_length,
            document_context=own.document_context, unk_id=t.vocab.unk_id, **t.vocab.ends,
        )

    def eval_set(split: str, examples: ConllExamples) -> EvalSet:
        windows = cut(examples)
        found = (labels, examples, windows)
        return EvalSet(
            '' if split == 'dev' else f'{split}_', _units(windows),
            functools.partial(_score, *found, metrics[0]),
            functools.partial(_write, *found, f'{split}_predictions.txt'),
        )

    return LabelledTask(config, t, LabelledData(
        train=None if train is None else _units(cut(train)),
        evaluated=tuple(eval_set(*item) for item in evaluated.items()),
        metric=metrics[0], labels=labels,
        head='feature_tagger' if own.features else 'token_classification',
        frozen='bert' if own.features else '',
        objective={'num_outputs': len(labels)} | (
            {'features': own.features} if own.features else {}),
        inference={'features': own.features} if own.features else {},
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


def _tags(
    labels: Sequence[str], examples: ConllExamples, windows: ConllWindows, outputs: Outputs,
) -> list[str]:
    """The predicted tag of each word."""
    tags = [''] * len(examples.words)
    scored = windows.word_index >= 0
    predicted = outputs['logits'][scored].argmax(axis=-1)
    for word, label in zip(windows.word_index[scored].tolist(), predicted.tolist(), strict=True):
        tags[word] = labels[label]
    return tags


def _score(
    labels: Sequence[str], examples: ConllExamples, windows: ConllWindows, metric: str,
    outputs: Outputs,
) -> dict[str, float]:
    tags = _tags(labels, examples, windows, outputs)
    if metric == 'f1':
        return conll_scores(tags, examples.tags, examples.sentence_offsets)
    pair = np.array(tags), np.array(examples.tags)
    return {'accuracy': accuracy(*pair), 'macro_f1': macro_f1(*pair)}


def _write(
    labels: Sequence[str], examples: ConllExamples, windows: ConllWindows, file: str,
    outputs: Outputs, workdir: Path,
) -> None:
    write_conll(
        workdir / file, examples.words, examples.tags, _tags(labels, examples, windows, outputs),
        examples.sentence_offsets,
    )


def _read_conll(config: ConfigDict, split: str) -> ConllExamples | None:
    """A split from the folder `data.source`; None where it has no test split."""
    if config.data.source == 'tfds:conll2003':
        if config.conll.document_context:
            raise InputError(
                "config.data.source='tfds:conll2003' has lost the documents; name the folder of "
                'the original files, or use configs/conll.py:sentences'
            )
        return conll.from_tfds(split, tfds_records(config, 'conll2003', split))
    folder = one_source(config, 'the folder with eng.train and eng.testa')
    if split == 'test' and not conll.find_conll(folder, split):
        return None
    return conll.read_conll(folder, split, max_malformed=config.data.max_malformed)


register(
    TaskKind('conll', open_conll, 'conll', _FIELDS),
    TaskKind('tagging', open_tagging, 'tagging', _FIELDS,
             reads=('data.text', 'data.label', 'data.held_out')),
)
