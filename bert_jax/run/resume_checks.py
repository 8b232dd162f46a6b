"""The folder of --workdir: its claim, and the checks before a run starts or resumes in it.

`run.description` reads and writes config.json.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from bert_jax.config.fields import field_of, flat_fields
from bert_jax.run.changes import Change, compare, number_phases
from bert_jax.run.description import read_config, read_run_fields
from bert_jax.run.layout import (
    BEST,
    CHECKPOINTS,
    GOODPUT,
    RECORDS,
    best_of,
    check_path,
    checkpoints_of,
    is_described,
    is_run,
)
from bert_jax.runtime import files, hosts
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, check_deletion, is_incidental, open_folder
from bert_jax.runtime.folder_lock import Claim, claimed
from bert_jax.runtime.provenance import made_by, other_code
from bert_jax.runtime.shared_folders import host_without
from bert_jax.text.kinds import TOKENIZER_FILES, find_vocabulary

# What a run leaves behind if it is killed while it starts, before it writes config.json.
STARTUP_FILES = (CHECKPOINTS, BEST, GOODPUT, RECORDS)


def locked_workdir(workdir: Path) -> contextlib.AbstractContextManager[Claim | None]:
    """Creates the run directory if needed; the `with` block holds the claim on it.

    The first host does this for all; the others get None.

    Raises:
      InputError: it cannot be used, holds something other than a run, or is in use by another
        process.
    """
    if not hosts.first():
        return contextlib.nullcontext()
    open_folder(workdir, '--workdir', _is_run)
    return claimed(workdir, 'run')


def _is_run(workdir: Path) -> bool:
    """Whether a folder is a run directory, perhaps of a run that was killed while it started."""
    saved = checkpoints_of(workdir) or best_of(workdir)
    if not saved and not is_described(workdir):
        known: tuple[str, ...] = STARTUP_FILES
        if is_run(workdir):  # else a vocabulary may be somebody's only one
            known = (*known, *TOKENIZER_FILES)
        return all(_is_left_by_a_start(path, known) for path in files.children(workdir))
    try:
        config = read_config(workdir)
    except InputError:
        if saved:  # certainly a run directory
            raise
        return False
    return isinstance(config.get('task'), str) and isinstance(config.get('model'), dict)


def _is_left_by_a_start(path: Path, known: Collection[str]) -> bool:
    is_events = path.name.startswith('events.out.')
    return path.name in known or is_events or is_incidental(path)


def check_resumable(
    workdir: Path, resolved: dict[str, Any], vocab_path: Path | None, *, comparable: bool
) -> None:
    """Compares a config with the run in the directory, and prints the differences.

    Nothing is written.

    Args:
      workdir: of the run.
      resolved: what `config.json` will contain. Settings that come too late for the run in the
        directory are reset here: skipped steps that are done, another `init_checkpoint`.
      vocab_path: of the run.
      comparable: whether this is a short run that is compared with others. Then it must train all
        its steps in the same way. Pre-training may resume with another learning rate.

    Raises:
      InputError: the directory cannot be used, or holds a run of another model or vocabulary.
    """
    if not hosts.first():
        return
    check_path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    check_deletion(workdir)
    saved = [*checkpoints_of(workdir), *best_of(workdir)]
    if not saved or not is_described(workdir):
        return
    newest_step = max(int(path.name) for path in saved)
    resumption = _Resumption(workdir, resolved, newest_step, comparable)
    resumption.check()
    if vocab_path is not None:
        _check_vocabulary(workdir, vocab_path)


def record_code(workdir: Path, resolved: dict[str, Any]) -> None:
    """Adds to what `config.json` will contain the code that the run goes on with, as `made`.

    If the run in the directory has trained with other code, a line says so, and that code is kept
    in `made.before`, with the newest step that was saved under it.
    """
    if not hosts.first():
        return
    made = made_by()
    resolved['made'] = made
    saved = checkpoints_of(workdir)
    if not saved or not is_described(workdir):
        return
    recorded = read_config(workdir).get('made')
    before = recorded if isinstance(recorded, dict) else {}
    made['before'] = list(before.get('before') or ())
    difference = other_code(before, made)
    if difference:
        hosts.say(f'note: the run goes on with other code: {difference}')
        newest_step = max(int(path.name) for path in saved)
        past = {name: before[name] for name in ('commit', 'code', 'versions') if name in before}
        made['before'].append({'until_step': newest_step, **past})


class _Resumption:
    """The run in a directory, and the description with which it is to resume."""

    def __init__(
        self, workdir: Path, resolved: dict[str, Any], newest_step: int, comparable: bool
    ):
        """Compares the run's `config.json` with the description.

        Args:
          workdir, resolved, comparable: as for `check_resumable`.
          newest_step: of the run's checkpoints.
        """
        self._workdir = workdir
        self._resolved = resolved
        self._newest_step = newest_step
        self._comparable = comparable
        self._recorded = read_run_fields(workdir)
        old = number_phases(self._recorded)
        new = number_phases(flat_fields(resolved))
        self._changes = {change.name: change for change in compare(old, new)}

    def check(self) -> None:
        """Refuses, reports or accepts each change.

        Raises:
          InputError: the run cannot resume with a change.
        """
        for change in self._changes.values():
            if not field_of(change.name).is_silent(self._resolved['task']):
                self._check(change)
        self._keep_record_of_start()

    def _check(self, change: Change) -> None:
        """Applies the rule of a field's role, or the rule for this very field."""
        role = field_of(change.name).role_of(self._resolved['task'])
        if change.name.startswith('identity.'):
            self._check_content(change)
        elif role == 'model' or (role == 'training' and self._comparable):
            self._refuse(change)
        elif change.name == 'init_checkpoint':
            self._keep_init_checkpoint(change)
        elif change.name == 'init_step':
            self._report_other_init_step(change)
        elif change.name == 'init_saved':
            self._report_other_init_save(change)
        elif change.name == 'train.steps' and (change.now or 0) < self._newest_step:
            self._refuse_fewer_steps(change)
        elif change.name == 'train.skip_steps':
            self._skip_only_later_steps(change)
        elif change.is_recorded:
            self._report(change)

    def _check_content(self, change: Change) -> None:
        """Pre-training may go on with more text; a downstream run has one training set."""
        if not change.is_recorded:
            return
        content = change.name.removeprefix('identity.')
        if self._comparable:
            raise InputError(
                f'{self._workdir} holds a run on other data (its {content} are not these): give '
                'another --workdir; bert_jax.evaluate scores a finished run on other data')
        hosts.say(f'warning: the run was trained on other data so far: {content} was '
                  f'{change.before}, now {change.now}')

    def _refuse(self, change: Change) -> None:
        refuse_changes(self._workdir, [change])

    def _refuse_fewer_steps(self, change: Change) -> None:
        raise InputError(
            f'{self._workdir} holds a run that is at step {self._newest_step:,}: '
            f'config.train.steps={change.now} ends before that; give another --workdir, or '
            f'{change.before} for the result of that run')

    def _keep_init_checkpoint(self, change: Change) -> None:
        """The run resumes from its own checkpoint."""
        hosts.say(f'warning: the run started from init_checkpoint={change.before!r}, which stays; '
                  f'{change.now!r} is not used: to start from it, give another --workdir')
        self._resolved['init_checkpoint'] = change.before

    def _report_other_init_step(self, change: Change) -> None:
        if change.before is not None:
            hosts.say(f'warning: the run started from step {change.before:,} of init_checkpoint, '
                      f'which is at {change.now or 0:,} now: to start from that, give another '
                      '--workdir')

    def _report_other_init_save(self, change: Change) -> None:
        """Another step is another save, too, and is reported as such."""
        if change.before is not None and 'init_step' not in self._changes:
            hosts.say('warning: init_checkpoint was made anew after this run started from it: to '
                      'start from what it is now, give another --workdir')

    def _skip_only_later_steps(self, change: Change) -> None:
        """Steps that are done cannot be skipped."""
        skipped_before = change.before or ()
        late = []
        still_ahead = []  # or skipped already
        for step in change.now:
            if step not in skipped_before and step <= self._newest_step:
                late.append(step)
            else:
                still_ahead.append(step)
        if late:
            steps = ', '.join(map(str, late))
            hosts.say(
                f'warning: {change.name}: the newest checkpoint is past {steps}, which stays as '
                'it was: to train on other rows there, move the checkpoints from there on out '
                f'of {self._workdir / CHECKPOINTS}')
            self._resolved['train']['skip_steps'] = still_ahead
        elif change.is_recorded:
            self._report(change)

    def _report(self, change: Change) -> None:
        note = (f'note: {change.name} was {change.before!r} in this run so far, now '
                f'{change.now!r}')
        if change.name == 'train.steps':
            note += (f'; warning: the learning rate goes on from step {self._newest_step:,} of the '
                     'new schedule: to have it from the start, give another --workdir')
        hosts.say(note)

    def _keep_record_of_start(self) -> None:
        """Keeps the record of what the run started from; `init_checkpoint` may have changed."""
        for name in ('init_step', 'init_saved'):
            self._resolved.pop(name, None)
            if name in self._recorded:
                self._resolved[name] = self._recorded[name]


def _check_vocabulary(workdir: Path, vocab_path: Path) -> None:
    """Refuses a vocabulary that differs from the one in the run directory."""
    kept = find_vocabulary(workdir)
    if kept is not None and files.read_bytes(kept) == vocab_path.read_bytes():
        return
    remedy = 'give another --workdir'
    if kept is not None:
        remedy += f', or --config.data.vocab_file={kept}'
    raise InputError(
        f'{workdir} holds a run with another vocabulary than {vocab_path}: {remedy}')


def refuse_other_optimizer(workdir: Path, fields: Mapping[str, Any]) -> None:
    """Refuses fields of the optimizer that the run in the directory does not have.

    To be called if the state in its checkpoints is not of the config's optimizer.

    Args:
      workdir: of the run, whose `config.json` is still that of its checkpoints.
      fields: of the config, by dotted name.

    Raises:
      InputError: there are such fields.
    """
    if not is_described(workdir):
        return
    changes = compare(read_run_fields(workdir), fields)
    of_optimizer = [change for change in changes if change.name.startswith('optimizer.')]
    if of_optimizer:
        refuse_changes(workdir, of_optimizer)


def refuse_changes(workdir: Path, changes: Sequence[Change]) -> NoReturn:
    """Raises InputError that names fields with which the run in the directory cannot resume."""
    before = ', '.join(f'{change.name}={change.before!r}' for change in changes)
    now = ', '.join(repr(change.now) for change in changes)
    raise InputError(
        f'{workdir} holds a run with {before}, the config says {now}: give another --workdir, or '
        'the config of that run')


def check_shared(workdir: Path) -> None:
    """Checks that all hosts see the files that the first host writes into the run directory.

    Otherwise each host would save its part of a checkpoint on its local disk and wait for the
    others' parts.

    Args:
      workdir: the run directory; it exists on the first host.

    Raises:
      InputError: a host does not see them; raised on all hosts, naming the first such host.
    """
    blind = host_without(workdir)
    if blind is not None:
        raise InputError(
            f'--workdir={workdir} is not the same folder on all hosts (host {blind} does not see '
            'what host 0 writes there): name a bucket or a disk that they share')
