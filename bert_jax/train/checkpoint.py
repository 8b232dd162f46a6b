"""Asynchronous checkpoints with orbax, kept by count."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from bert_jax.errors import InputError
from bert_jax.train.state import TrainState


class Checkpoints:
    """The checkpoints of a run, `DIRECTORY/STEP/`.

    Orbax writes beside and renames, so a killed process leaves whole checkpoints only. One that
    cannot be read all the same (a damaged disk) is moved aside as `STEP.unreadable`, and the one
    before it is taken.
    """

    def __init__(self, directory: Path, keep: int | None):
        self._directory, self._keep = directory, keep
        self._open()

    def _open(self) -> None:
        self._manager = ocp.CheckpointManager(
            self._directory.absolute(),
            item_handlers=ocp.StandardCheckpointHandler(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=self._keep, create=True, enable_async_checkpointing=True
            ),
        )

    def latest_step(self) -> int | None:
        """Step of the newest checkpoint, or None."""
        return self._manager.latest_step()

    def restore(self, abstract: TrainState) -> TrainState | None:
        """The newest readable state, laid out as `abstract` says, or None where there is none.

        Raises:
          InputError: a checkpoint of another model or optimizer; or there are some, and none can
            be read (a run is never begun again silently).
        """
        unreadable = 0
        while (step := self.latest_step()) is not None:
            try:
                saved = self._shapes(step)
                wanted = {name: tuple(x.shape) for name, x in _leaves(abstract).items()}
                _check_same(saved, wanted, self._directory / str(step))
                return self._manager.restore(step, args=ocp.args.StandardRestore(abstract))
            except InputError:
                raise
            except Exception as error:
                self._move_aside(step, error)
                unreadable += 1
        if unreadable:
            raise InputError(
                f'{self._directory} has no checkpoint that can be read (see STEP.unreadable '
                'there): to begin again from step 0, give another --workdir'
            )
        return None

    def _shapes(self, step: int) -> dict[str, tuple[int, ...]]:
        """Shape by parameter path of a saved state, from its metadata."""
        metadata = self._manager.item_metadata(step)
        tree = getattr(metadata, 'tree', None)
        if tree is None:
            raise ValueError('no metadata')
        leaves = jax.tree_util.tree_leaves_with_path(
            tree, is_leaf=lambda x: hasattr(x, 'shape') and hasattr(x, 'dtype')
        )
        return {_name(path): tuple(leaf.shape) for path, leaf in leaves if hasattr(leaf, 'shape')}

    def _move_aside(self, step: int, error: Exception) -> None:
        path = self._directory / str(step)
        if jax.process_count() > 1:
            raise InputError(
                f'{path} cannot be read ({_first_line(error)}): move it away, and the checkpoint '
                'before it is taken'
            ) from error
        self._manager.close()
        aside = path.with_name(f'{step}.unreadable')
        number = 1
        while aside.exists():
            number += 1
            aside = path.with_name(f'{step}.unreadable-{number}')
        os.rename(path, aside)
        print(
            f'warning: checkpoint {path} cannot be read ({_first_line(error)}); moved to '
            f'{aside.name}, trying the one before it', flush=True,
        )
        self._open()

    def save(self, step: int, state: TrainState) -> None:
        """Begins saving; the state may be donated as soon as this returns."""
        if self.latest_step() != step:
            self._manager.save(step, args=ocp.args.StandardSave(state))

    def close(self) -> None:
        """Waits for saves under way."""
        self._manager.wait_until_finished()
        self._manager.close()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _name(path: tuple[Any, ...]) -> str:
    return '/'.join(str(getattr(key, 'key', getattr(key, 'name', getattr(key, 'idx', key))))
                    for key in path)


def _leaves(tree: Any) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _check_same(
    saved: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]], where: Path
) -> None:
    for name, shape in wanted.items():
        if name not in saved:
            raise InputError(
                f'{where} is of another model or optimizer: it has no {name}; give another '
                '--workdir, or the config that it was made with'
            )
        if saved[name] != shape:
            raise InputError(
                f'{where} is of another model: {name} is {list(saved[name])} there and '
                f'{list(shape)} in the config; give another --workdir, or that config'
            )
    extra = sorted(set(saved) - set(wanted))
    if extra:
        raise InputError(
            f'{where} is of another model or optimizer: it also has {extra[0]}; give another '
            '--workdir, or the config that it was made with'
        )
