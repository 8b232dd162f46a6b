"""The parameters of the best evaluation so far, beside the run's checkpoints."""

from __future__ import annotations

import math
from typing import Any

import orbax.checkpoint as ocp

from bert_jax.runtime import files
from bert_jax.runtime.checksum import check_digest, saved_tree, with_digest
from bert_jax.runtime.errors import InputError
from bert_jax.train.restore import Damaged, read


class Best:
    """One checkpoint of parameters, `DIRECTORY/STEP/`, with the metrics it was chosen by.

    Orbax writes metrics and parameters together and renames, so a killed run holds one good one.
    """

    def __init__(self, directory: Any, metric: str):
        """Opens what is there.

        Args:
          directory: `best/` of the run.
          metric: name of the metric that is to be high.

        Raises:
          InputError: what is there cannot be read.
        """
        self._metric = metric
        self._directory = files.absolute(directory)
        try:
            self._manager = ocp.CheckpointManager(
                self._directory,
                item_handlers=ocp.StandardCheckpointHandler(),
                options=ocp.CheckpointManagerOptions(
                    max_to_keep=1, create=True, best_fn=lambda metrics: metrics[metric],
                    best_mode='max',
                ),
            )
            found = self.metrics()
            good = found is None or metric in found and all(map(math.isfinite, found.values()))
        except (ValueError, TypeError, KeyError, AttributeError, FileNotFoundError):
            good = False
        if not good:
            raise InputError(
                f'{self._directory} holds no {metric} that can be read (STEP/metrics/metrics): put '
                'it back as it was, or move the folder away and the next evaluation is the best'
            )

    def offer(self, step: int, metrics: dict[str, float], params: Any) -> None:
        """Keeps these parameters if they are better than all before (the first, where equal)."""
        best = self.metrics()
        if best is None or metrics[self._metric] > best[self._metric]:
            saved = ocp.args.StandardSave(saved_tree({'params': params}))
            self._manager.save(step, args=saved, metrics=with_digest(metrics))
            self._manager.wait_until_finished()  # `params` are donated to the next step

    def metrics(self) -> dict[str, float] | None:
        """Metrics of the best evaluation, or None before the first."""
        step = self._manager.best_step()
        return None if step is None else check_digest(
            self._manager.metrics(step), self._directory / str(step) / 'metrics')

    def restore(self, abstract_params: Any) -> tuple[int, Any]:
        """(step, parameters) of the best evaluation.

        Raises:
          InputError: they cannot be read.
        """
        step = self._manager.best_step()
        assert step is not None, 'nothing was offered'
        path = self._directory / str(step)
        try:
            return step, read(path, {'params': abstract_params})['params']
        except Damaged as error:
            raise InputError(
                f'{path} cannot be read ({error}): the parameters of the best evaluation are lost; '
                'move it away, and start again for the result of the last one'
            ) from error

    def close(self) -> None:
        self._manager.close()
