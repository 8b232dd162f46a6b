"""SWAG (paper section 4.4), or your own: a sequence a choice, one vector, softmax over them."""

from __future__ import annotations

import functools

import numpy as np
from ml_collections import ConfigDict

from bert_jax.labelled.packing import Units
from bert_jax.labelled.swag import (
    SwagExamples,
    read_choices,
    read_swag,
    read_swag_file,
    swag_sequences,
)
from bert_jax.metrics.labels import accuracy
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path
from bert_jax.tasks.base import ScoredModel, TaskKind, register
from bert_jax.tasks.labelled import (
    EvalSet,
    LabelledData,
    LabelledTask,
    Outputs,
    one_source,
    open_tokenization,
    own_files,
)
from bert_jax.tasks.texts import write_predictions


def open_swag(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """SWAG or a set in its style: trained on train, scored on dev (see `labelled.swag`)."""
    kind = {'max_malformed': config.data.max_malformed}
    eval_source = config.data.eval_source

    def read(split: str) -> SwagExamples:
        if split == 'dev' and eval_source:
            return read_swag_file(str(as_path(eval_source)), **kind)
        source = one_source(config, 'a folder of SWAG files, or one file in its style')
        if eval_source and as_path(source).is_file():  # all of it
            return read_swag_file(source, **kind)
        return read_swag(source, split, **kind)

    dev = read('dev')
    return _task(config, read('train') if scored is None else None, dev)


def open_choices(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Your own file, columns by name."""
    d = config.data
    choices = [name.strip() for name in d.choices.split(',') if name.strip()]
    if not choices:
        raise InputError(
            "config.data.choices='': name the columns of the choices, between commas, or the one "
            'of JSON lines that holds a list of them'
        )
    read = functools.partial(
        read_choices, text=d.text, choices=choices, label=d.label, id_column=d.id,
        max_malformed=d.max_malformed)
    return _task(config, *own_files(
        config, read, lambda examples: examples.context, meaning='a .csv, .tsv or .jsonl file',
        what='questions', training=scored is None,
    ))


def _task(config: ConfigDict, train: SwagExamples | None, dev: SwagExamples) -> LabelledTask:
    if train is not None and train.num_choices != dev.num_choices:
        raise InputError(
            f'{dev.source} has {dev.num_choices} choices a question, {train.source} '
            f'{train.num_choices}: there must be as many'
        )
    t = open_tokenization(config)

    def units(examples: SwagExamples) -> Units:
        assert examples.labels is not None
        sequences = swag_sequences(examples, t.encode, t.max_length, **t.vocab.ends)
        return Units(sequences, examples.num_choices, labels={'labels': examples.labels})

    scored = units(dev)
    return LabelledTask(config, t, LabelledData(
        train=None if train is None else units(train),
        evaluated=(EvalSet(
            '', scored, functools.partial(_score, scored.labels['labels']),
            functools.partial(_write, dev.ids, config.data.id),
        ),),
        metric='accuracy', head='multiple_choice', objective={'num_outputs': dev.num_choices},
    ))


def _score(labels: np.ndarray, outputs: Outputs) -> dict[str, float]:
    return {'accuracy': accuracy(outputs['logits'].argmax(axis=-1), labels)}


def _write(ids: list[str], id_column: str, outputs: Outputs, workdir: Path) -> None:
    choices = outputs['logits'].argmax(axis=-1)
    write_predictions(workdir / 'dev_predictions.tsv', id_column, ids, map(str, choices))


register(
    TaskKind('swag', open_swag),
    TaskKind('multiple_choice', open_choices,
             reads=('data.text', 'data.choices', 'data.label', 'data.id', 'data.held_out')),
)
