"""CoNLL-2003 named entities (paper section 5.3), fine-tuned or feature-based; entity-level F1."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from bert_jax.data.conll import ConllExamples, ConllWindows, conll_windows
from bert_jax.data.packing import Units
from bert_jax.data.pairs import Encode
from bert_jax.files import Path
from bert_jax.metrics.conll import conll_scores, write_conll
from bert_jax.model.objectives import FeatureTagging, Tagging
from bert_jax.tasks.base import Downstream, EvalSet


def open_conll(
    read: Callable[[str], ConllExamples | None], encode: Encode, *, features: str,
    max_length: int, document_context: bool, cls_id: int, sep_id: int, unk_id: int,
) -> Downstream:
    """Trained on train, scored on dev, and on test where it is there (`test_f1` and so on).

    Args:
      read: reads a split; None where there is no test split.
      encode: texts to ids; a cased vocabulary is wanted.
      features: empty: the encoder is fine-tuned; else it is frozen, and these of its layers are
        the features of a BiLSTM (`model.bilstm.FEATURES`).
      max_length: pieces of a window.
      document_context: whether windows are filled up with neighbouring sentences.
      cls_id, sep_id, unk_id: of the vocabulary.

    Raises:
      InputError: whatever is wrong with the files.
    """
    examples = {
        split: part for split in ('train', 'dev', 'test') if (part := read(split)) is not None
    }
    labels = examples['train'].labels
    windows = {
        split: conll_windows(
            part, encode, labels, max_length=max_length, document_context=document_context,
            cls_id=cls_id, sep_id=sep_id, unk_id=unk_id,
        )
        for split, part in examples.items()
    }

    def eval_set(split: str, name: str) -> EvalSet:
        found = (labels, examples[split], windows[split])
        return EvalSet(
            name, _units(windows[split]), functools.partial(_score, *found),
            functools.partial(_write, *found, f'{split}_predictions.txt'),
        )

    return Downstream(
        train=_units(windows['train']),
        evaluated=(
            eval_set('dev', ''), *([eval_set('test', 'test_')] if 'test' in examples else []),
        ),
        predicted=(), metric='f1', labels=labels,
        head='feature_tagger' if features else 'token_classification',
        frozen='bert' if features else '',
        make_task=functools.partial(
            FeatureTagging, num_outputs=len(labels), features=features
        ) if features else functools.partial(Tagging, num_outputs=len(labels)),
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
    labels: Sequence[str], examples: ConllExamples, windows: ConllWindows, file: str,
    outputs: dict[str, np.ndarray], workdir: Path,
) -> None:
    write_conll(
        workdir / file, examples.words, examples.tags, _tags(labels, examples, windows, outputs),
        examples.sentence_offsets,
    )
