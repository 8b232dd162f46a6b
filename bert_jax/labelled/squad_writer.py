"""Predictions as the files that the official scripts and `run_squad.py` know."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

from bert_jax.labelled.squad_answers import Prediction, final_texts
from bert_jax.runtime.files import as_path, write_whole


def write_predictions(
    folder: str | os.PathLike[str],
    ids: Sequence[str],
    predictions: Sequence[Prediction],
    *,
    null_threshold: float | None = None,
) -> None:
    """Writes JSON files by question id; each appears whole or not at all.

    `predictions.json`: texts, for the official script. `nbest_predictions.json`: candidates with
    text, probability and logits. For SQuAD 2.0 also `null_odds.json`.

    Args:
      folder: where; it must exist.
      ids: question ids.
      predictions: one for each.
      null_threshold: SQuAD 2.0: odds of "no answer" above it empty the text. None: SQuAD 1.1.
    """
    pairs = list(zip(ids, predictions, strict=True))
    _write(folder, 'predictions.json', final_texts(ids, predictions, null_threshold))
    _write(folder, 'nbest_predictions.json', {
        name: [dataclasses.asdict(candidate) for candidate in found.n_best]
        for name, found in pairs
    })
    if null_threshold is not None:
        _write(folder, 'null_odds.json', {name: found.null_odds for name, found in pairs})


def _write(folder: str | os.PathLike[str], name: str, content: dict[str, Any]) -> None:
    write_whole(as_path(folder) / name, json.dumps(content, indent=1) + '\n')
