"""Asynchronous checkpoints with orbax, kept by count."""

from __future__ import annotations

import json
from typing import Any

import orbax.checkpoint as ocp

from bert_jax.runtime import files, hosts
from bert_jax.runtime.checksum import leaves, not_finite, saved_tree
from bert_jax.runtime.errors import Diverged, InputError
from bert_jax.train.restore import Damaged, first_line, on_all_hosts, read
from bert_jax.train.state import TrainState


class Checkpoints:
    """The checkpoints of a run, `DIRECTORY/STEP/`.

    Orbax writes beside and renames, so a killed process leaves whole checkpoints only. One that is
    damaged all the same (a bad disk) is passed over, and the one before it is taken; once that
    could be read, the damaged one is moved aside as `STEP.unreadable`. Nothing is moved where none
    can be read: then the fault may not be theirs. Every other fault is raised as what it is.

    What is kept is finite, and all but the newest were trained a step further: so of a run that
    keeps one checkpoint there are two while it trains.
    """

    def __init__(self, directory: Any, keep: int | None):
        self._directory = files.absolute(directory)
        self._manager = ocp.CheckpointManager(
            self._directory,
            item_handlers=ocp.StandardCheckpointHandler(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=None if keep is None else max(keep, 2), create=True,
                enable_async_checkpointing=True,
            ),
        )
        self._keep = keep

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
            aside = self._rename(path, 'unreadable')
            hosts.say(f'warning: checkpoint {path} cannot be read ({fault}); moved to '
                      f'{aside.name}, taking the one before it')

    def _rename(self, path: Any, kind: str) -> Any:
        aside = path.with_name(f'{path.name}.{kind}')
        number = 1
        while aside.exists():
            number += 1
            aside = path.with_name(f'{path.name}.{kind}-{number}')
        path.rename(aside)  # in a bucket its objects are copied, then deleted
        return aside

    def save(self, step: int, state: TrainState) -> None:
        """Begins saving; the state may be donated as soon as this returns.

        Raises:
          Diverged: a parameter or a moment is not finite; nothing is saved.
        """
        if self.latest_step() == step:
            return
        tree = _as_tree(state)
        if name := not_finite(leaves(tree)):
            raise Diverged(f'step {step}: {name} is not finite', step)
        self._manager.save(step, args=ocp.args.StandardSave(saved_tree(tree)))

    def set_aside(self, step: int) -> str:
        """Moves the checkpoint of a step, which was found to be no good, to `STEP.diverged`.

        Returns:
          What there is to go on from, in words.
        """
        self._manager.wait_until_finished()

        def move() -> None:
            if hosts.first() and step in self._manager.all_steps():
                self._rename(self._directory / str(step), 'diverged')

        on_all_hosts('move a checkpoint aside', move)
        self._manager.reload()
        latest = self.latest_step()
        return ('there is no good checkpoint' if latest is None else
                f'the last good checkpoint, of step {latest:,}, is kept')

    def finish(self) -> None:
        """Leaves as many checkpoints as are to be kept: the newest is known to be good."""
        self._manager.wait_until_finished()
        if self._keep is not None:
            for step in sorted(self._manager.all_steps())[: -self._keep]:
                self._manager.delete(step)

    def close(self) -> None:
        """Waits for saves under way."""
        self._manager.wait_until_finished()
        self._manager.close()


def _as_tree(state: TrainState) -> dict[str, Any]:
    return {'step': state.step, 'params': state.params, 'opt_state': state.opt_state}
