"""SWAG (paper section 4.4): four sequences a question, one vector, softmax over the choices."""

from __future__ import annotations

import functools

import numpy as np
from ml_collections import ConfigDict

from bert_jax.files import Path, as_path, write_whole
from bert_jax.labelled.packing import Units
from bert_jax.labelled.swag import (
    NUM_CHOICES,
    SwagExamples,
    read_swag,
    read_swag_file,
    swag_sequences,
)
from bert_jax.metrics.labels import accuracy
from bert_jax.tasks.base import TaskKind, register
from bert_jax.tasks.labelled import (
    EvalSet,
    LabelledData,
    LabelledTask,
    Outputs,
    one_source,
    open_tokenization,
)


def open_swag(config: ConfigDict, known: tuple[str, ...] | None = None) -> LabelledTask:
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
    t = open_tokenization(config)

    def units(examples: SwagExamples) -> Units:
        assert examples.labels is not None
        sequences = swag_sequences(examples, t.encode, t.max_length, **t.vocab.ends)
        return Units(sequences, NUM_CHOICES, labels={'labels': examples.labels})

    scored = units(dev)
    return LabelledTask(config, t, LabelledData(
        train=units(read('train')) if known is None else None,
        evaluated=(EvalSet(
            '', scored, functools.partial(_score, scored.labels['labels']),
            functools.partial(_write, dev.ids),
        ),),
        metric='accuracy', head='multiple_choice', objective={'num_outputs': NUM_CHOICES},
    ))


def _score(labels: np.ndarray, outputs: Outputs) -> dict[str, float]:
    return {'accuracy': accuracy(outputs['logits'].argmax(axis=-1), labels)}


def _write(ids: list[str], outputs: Outputs, workdir: Path) -> None:
    choices = outputs['logits'].argmax(axis=-1)
    lines = ['index\tprediction', *(f'{i}\t{c}' for i, c in zip(ids, choices, strict=True))]
    write_whole(workdir / 'dev_predictions.tsv', '\n'.join(lines) + '\n')


register(TaskKind('swag', open_swag))
