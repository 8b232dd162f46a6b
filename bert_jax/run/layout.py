"""The contents of a run folder. Their names stand here alone.

    config.json          The config as resolved, with what was found in the data. Written before the
                         first step and at the end. A run that resumes is compared with it by the
                         roles of the fields (`resume_checks`); without it, a run begins anew.
    vocab.txt            The vocabulary (or the tokenizer's file) with its settings, written with
                         config.json. The run that resumes must have the same.
    config_file.py       A copy of the file that defines the task or the head. People read it.
    checkpoints/STEP/    The state after a step, saved at `train.save_every` and when the run stops.
                         A run resumes from the newest that can be read.
    best/STEP/           The parameters of the best evaluation and its metrics, with which the next
                         evaluations are compared.
    metrics.jsonl        A record a line, with `step`. It is cut back to the step that a run resumes
                         from.
    goodput.json         Seconds by cause, written at each save. It may be missing.
    curves.png, events.out.*  For people.
    sweep_result.json    Of a run of a sweep: its scores. A sweep deletes checkpoints/ and best/ of
                         the runs that others are better than.
    sweep_pruned.json    Of a run that a sweep with --prune has ended early: why. Its checkpoints
                         are deleted.

A stop leaves all of these as of one step. A kill loses the steps since the last checkpoint.
"""

import glob
import os

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, children, in_bucket

DESCRIPTION = 'config.json'
CHECKPOINTS = 'checkpoints'
BEST = 'best'
RECORDS = 'metrics.jsonl'
GOODPUT = 'goodput.json'
CURVES = 'curves.png'
SWEEP_RESULT = 'sweep_result.json'
SWEEP_PRUNED = 'sweep_pruned.json'
STATE = 'default'  # in a checkpoint: orbax's name of the saved tree
COMMITTED = 'commit_success.txt'


def is_described(folder: Path) -> bool:
    """Whether a folder has the description of a run or of a model."""
    return (folder / DESCRIPTION).exists()


def is_run(folder: Path) -> bool:
    """Whether a folder is a run folder, with checkpoints."""
    return (folder / CHECKPOINTS).exists()


def _saved_steps(folder: Path) -> list[Path]:
    """The checkpoints `FOLDER/STEP` that were saved completely.

    On a disk, orbax renames a complete checkpoint; in a bucket, it writes one in place and the file
    `commit_success.txt` last.
    """
    mark = COMMITTED if in_bucket(folder) else ''
    return [path for path in children(folder) if path.name.isdigit() and (path / mark).exists()]


def checkpoints_of(run: Path) -> list[Path]:
    """The complete checkpoints of a run's state."""
    return _saved_steps(run / CHECKPOINTS)


def best_of(run: Path) -> list[Path]:
    """The complete checkpoints of a run's best parameters: one, or none."""
    return _saved_steps(run / BEST)


def is_step(path: Path) -> bool:
    """Whether a path has the form of a run's checkpoint, `RUN/checkpoints/STEP`."""
    return path.parent.name == CHECKPOINTS and path.name.isdigit()


def run_of(path: Path) -> Path:
    """The run folder that a path names: the path itself, or RUN of `RUN/checkpoints/STEP`."""
    return path.parent.parent if is_step(path) else path


def step_to_read(named: Path) -> Path | None:
    """The checkpoint that a model is read from; None if there is none.

    It is the one that is named, else that of the best evaluation, else the newest.
    """
    if is_step(named):
        return named
    steps = best_of(named) or checkpoints_of(named)
    return max(steps, key=lambda path: int(path.name), default=None)


def check_path(workdir: Path) -> None:
    """Refuses a run's path that orbax would take for a pattern: it would save half of the arrays.

    Raises:
      InputError: the path has such characters, and there is no run yet.
    """
    if glob.has_magic(os.fspath(workdir)) and not checkpoints_of(workdir):
        raise InputError(f'{workdir}: checkpoints cannot be saved under a path with any of the '
                         'characters [ * ?, name the folder otherwise')
