"""CoNLL-2003 named entities (paper section 5.3), fine-tuned or feature-based; entity-level F1."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_jax.data.conll import ConllExamples, ConllWindows, conll_windows, read_conll
from bert_jax.data.packing import Units
from bert_jax.data.pairs import Encode
from bert_jax.metrics.conll import conll_scores, write_conll
from bert_jax.tasks.base import Downstream, EvalSet
from bert_jax.tasks.tagging import Tagging


def open_conll(
    source: str, encode: Encode, *, features: str, max_length: int, document_context: bool,
    cls_id: int, sep_id: int, unk_id: int, max_malformed: float,
) -> Downstream:
    """Trained on train, scored on dev.

    Args:
      source: the folder of the files, see `data.conll.read_conll`.
      encode: texts to ids; a cased vocabulary is wanted.
      features: empty: the encoder is fine-tuned; else it is frozen, and these of its layers are
        the features of a BiLSTM (`model.bilstm.FEATURES`).
      max_length: pieces of a window.
      document_context: whether windows are filled up with neighbouring sentences.
      cls_id, sep_id, unk_id: of the vocabulary.
      max_malformed: share of malformed lines past which reading is an error.

    Raises:
      InputError: whatever is wrong with the files.
    """
    examples = {
        split: read_conll(source, split, max_malformed=max_malformed) for split in ('train', 'dev')
    }
    labels = examples['train'].labels
    windows = {
        split: conll_windows(
            part, encode, labels, max_length=max_length, document_context=document_context,
            cls_id=cls_id, sep_id=sep_id, unk_id=unk_id,
        )
        for split, part in examples.items()
    }
    dev = (labels, examples['dev'], windows['dev'])
    return Downstream(
        train=_units(windows['train']),
        evaluated=(EvalSet(
            '', _units(windows['dev']), functools.partial(_score, *dev),
            functools.partial(_write, *dev),
        ),),
        predicted=(), metric='f1', labels=labels,
        head='feature_tagger' if features else 'token_classification',
        frozen='bert' if features else '',
        make_task=functools.partial(
            Tagging, num_labels=len(labels), features=features, name='CoNLL-2003'
        ),
    )


def _units(windows: ConllWindows) -> Units:
    return Units(windows.sequences, tokens={
        'token_labels': windows.labels,
        'token_weights': (windows.word_index >= 0).astype(np.float32),
    })


def _tags(
    labels: Sequence[str], examples: ConllExamples, windows: ConllWindows,
    outputs: dict[str, np.ndarray],
) -> list[str]:
    """The predicted tag of each word."""
    tags = [''] * len(examples.words)
    scored = windows.word_index >= 0
    predicted = outputs['logits'][scored].argmax(axis=-1)
    for word, label in zip(windows.word_index[scored].tolist(), predicted.tolist(), strict=True):
        tags[word] = labels[label]
    return tags


def _score(
    labels: Sequence[str], examples: ConllExamples, windows: ConllWindows,
    outputs: dict[str, np.ndarray],
) -> dict[str, float]:
    tags = _tags(labels, examples, windows, outputs)
    return conll_scores(tags, examples.tags, examples.sentence_offsets)


def _write(
    labels: Sequence[str], examples: ConllExamples, windows: ConllWindows,
    outputs: dict[str, np.ndarray], workdir: Path,
) -> None:
    beside = workdir / 'dev_predictions.txt.tmp'
    write_conll(
        beside, examples.words, examples.tags, _tags(labels, examples, windows, outputs),
        examples.sentence_offsets,
    )
    beside.replace(workdir / 'dev_predictions.txt')
