"""SWAG (paper section 4.4): four sequences a question, one vector, softmax over the choices."""

from __future__ import annotations

import functools

import numpy as np

from bert_jax.data.packing import Units
from bert_jax.data.pairs import Encode
from bert_jax.data.swag import NUM_CHOICES, SwagExamples, read_swag, swag_sequences
from bert_jax.files import Path, write_whole
from bert_jax.metrics.glue import accuracy
from bert_jax.model.objectives import MultipleChoice
from bert_jax.tasks.base import Downstream, EvalSet


def open_swag(
    source: str, encode: Encode, *, max_length: int, cls_id: int, sep_id: int,
    max_malformed: float,
) -> Downstream:
    """SWAG or a set in its style: trained on train, scored on dev (see `data.swag`).

    Args:
      source: a folder, or one file that is divided into train and dev.
      encode: texts to ids.
      max_length: pieces of a sequence.
      cls_id, sep_id: of the vocabulary.
      max_malformed: share of malformed rows past which reading is an error.

    Raises:
      InputError: whatever is wrong with the files.
    """
    def read(split: str) -> tuple[SwagExamples, Units]:
        examples = read_swag(source, split, max_malformed=max_malformed)
        sequences = swag_sequences(examples, encode, max_length, cls_id, sep_id)
        assert examples.labels is not None
        return examples, Units(sequences, NUM_CHOICES, labels={'labels': examples.labels})

    _, train = read('train')
    examples, dev = read('dev')
    return Downstream(
        train=train,
        evaluated=(EvalSet(
            '', dev, functools.partial(_score, dev.labels['labels']),
            functools.partial(_write, examples.ids),
        ),),
        predicted=(), metric='accuracy', head='multiple_choice', labels=(),
        make_task=functools.partial(MultipleChoice, num_outputs=NUM_CHOICES),
    )


def _score(labels: np.ndarray, outputs: dict[str, np.ndarray]) -> dict[str, float]:
    return {'accuracy': accuracy(outputs['logits'].argmax(axis=-1), labels)}


def _write(ids: list[str], outputs: dict[str, np.ndarray], workdir: Path) -> None:
    choices = outputs['logits'].argmax(axis=-1)
    lines = ['index\tprediction', *(f'{i}\t{c}' for i, c in zip(ids, choices, strict=True))]
    write_whole(workdir / 'dev_predictions.tsv', '\n'.join(lines) + '\n')
