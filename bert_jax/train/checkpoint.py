"""Asynchronous checkpoints with orbax, kept by count."""

from __future__ import annotations

import json
from typing import Any

import orbax.checkpoint as ocp

from bert_jax import files, hosts
from bert_jax.errors import InputError
from bert_jax.train.restore import Damaged, first_line, on_all_hosts, read, saved_tree
from bert_jax.train.state import TrainState


class Checkpoints:
    """The checkpoints of a run, `DIRECTORY/STEP/`.

    Orbax writes beside and renames, so a killed process leaves whole checkpoints only. One that is
    damaged all the same (a bad disk) is passed over, and the one before it is taken; once that
    could be read, the damaged one is moved aside as `STEP.unreadable`. Nothing is moved where none
    can be read: then the fault may not be theirs. Every other fault is raised as what it is.
    """

    def __init__(self, directory: Any, keep: int | None):
        self._directory = files.absolute(directory)
        self._manager = ocp.CheckpointManager(
            self._directory,
            item_handlers=ocp.StandardCheckpointHandler(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep, create=True, enable_async_checkpointing=True
            ),
        )

    def latest_step(self) -> int | None:
        """Step of the newest checkpoint, or None."""
        return self._manager.latest_step()

    def restore(self, abstract: TrainState) -> TrainState | None:
        """The newest whole state, laid out as `abstract` says, or None where there is none.

        All hosts take the same one.

        Raises:
          InputError: a checkpoint of another model or optimizer; or there are some, and none can
            be read (a run is never begun again silently).
        """
        steps = json.loads(hosts.share('steps', lambda: json.dumps(
            sorted(self._manager.all_steps(), reverse=True)
        )))
        damaged: dict[int, str] = {}
        for step in steps:
            try:
                tree = read(self._directory / str(step), _as_tree(abstract))
            except Damaged as error:
                damaged[step] = first_line(error)
                continue
            if damaged:
                on_all_hosts('move a checkpoint aside', lambda: self._move_aside(damaged))
                self._manager.reload()
            return TrainState(**tree)
        if damaged:
            raise InputError(
                f'{self._directory} has no checkpoint that can be read (step {steps[0]}: '
                f'{damaged[steps[0]]}): to begin again from step 0, give another --workdir'
            )
        return None

    def _move_aside(self, damaged: dict[int, str]) -> None:
        if not hosts.first():
            return
        for step, fault in damaged.items():
            path = self._directory / str(step)
            aside = path.with_name(f'{step}.unreadable')
            number = 1
            while aside.exists():
                number += 1
                aside = path.with_name(f'{step}.unreadable-{number}')
            path.rename(aside)  # in a bucket its objects are copied, then deleted
            hosts.say(f'warning: checkpoint {path} cannot be read ({fault}); moved to '
                      f'{aside.name}, taking the one before it')

    def save(self, step: int, state: TrainState) -> None:
        """Begins saving; the state may be donated as soon as this returns."""
        if self.latest_step() != step:
            self._manager.save(step, args=ocp.args.StandardSave(saved_tree(_as_tree(state))))

    def close(self) -> None:
        """Waits for saves under way."""
        self._manager.wait_until_finished()
        self._manager.close()


def _as_tree(state: TrainState) -> dict[str, Any]:
    return {'step': state.step, 'params': state.params, 'opt_state': state.opt_state}
