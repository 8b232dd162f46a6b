"""The folder of --workdir: its claim, and the checks before a run starts or resumes in it.

`weights.run_directory` reads and writes its contents.
"""

import contextlib
import secrets
import time
from typing import Any

from bert_jax.config.bert_config import COMPUTATION, OPTIONS
from bert_jax.config.fields import FIELDS, WITHOUT_A_SAY, flat_fields
from bert_jax.config.phases import PHASE_FIELDS, PHASE_ROWS
from bert_jax.runtime import files, hosts
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, check_deletion, is_incidental, open_folder
from bert_jax.runtime.lease import Claim, claimed
from bert_jax.weights.formats import find_vocabulary
from bert_jax.weights.run_directory import read_config, run_of, saved_steps

# Fields that may change at a resume without a message. The vocabulary itself is compared.
_FREE_TO_CHANGE = (
    *WITHOUT_A_SAY, 'train.verify_every', 'train.max_eval_examples', 'data.vocab_file',
    'data.add_tokens', 'vocabulary', 'identity.vocabulary', 'mesh.', 'inference.')
# Fields that may not change within a run. Pre-training may resume with another learning rate; a
# downstream run, which is short and compared with others, may not.
_OF_ANY_RUN = ('task', 'model.', 'debug')
_OF_A_DOWNSTREAM_RUN = ('seed', 'init_checkpoint', 'train.batch_size', 'optimizer.')
# Model fields that change how the model is computed, not what it computes.
_OF_THE_COMPUTATION = tuple(f'model.{name}' for name in COMPUTATION)
# Values of fields that did not exist when a run was made.
_DEFAULTS = {path: field.default for path, field in FIELDS.items()} | {
    f'model.{option.name}': option.default for option in OPTIONS}
# What a run leaves behind if it is killed while it starts, before it writes config.json.
STARTUP_FILES = ('checkpoints', 'best', 'goodput.json', 'metrics.jsonl')


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
    saved = any(saved_steps(workdir / name) for name in ('checkpoints', 'best'))
    if not saved and not (workdir / 'config.json').exists():
        return all(
            path.name in STARTUP_FILES or path.name.startswith('events.out.') or is_incidental(path)
            for path in files.children(workdir))
    try:
        config = read_config(workdir)
    except InputError:
        if saved:  # certainly a run directory
            raise
        return False
    return isinstance(config.get('task'), str) and isinstance(config.get('model'), dict)


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
      comparable: whether this is a short run that is compared with others; then no setting that
        affects its result may change.

    Raises:
      InputError: the directory cannot be used, or holds a run of another model or vocabulary.
    """
    if not hosts.first():
        return
    workdir.mkdir(parents=True, exist_ok=True)
    check_deletion(workdir)
    saved = [*saved_steps(workdir / 'checkpoints'), *saved_steps(workdir / 'best')]
    if not saved or not (workdir / 'config.json').exists():
        return
    newest = max(int(path.name) for path in saved)
    old, new = map(_each_phase, (read_run_fields(workdir), flat_fields(resolved)))
    fixed = _OF_ANY_RUN + (_OF_A_DOWNSTREAM_RUN if comparable else ())
    for name in sorted(old.keys() | new.keys()):
        before: Any = old.get(name, _DEFAULTS.get(name))
        now: Any = new.get(name)
        # A field that no longer exists does not matter, unless it shaped the model.
        gone = name not in new and not (name.startswith('model.') and before)
        # It decides among how many evaluations the best is chosen.
        has_a_say = comparable and name == 'train.eval_every'
        if gone or before == now or (name.startswith(_FREE_TO_CHANGE) and not has_a_say):
            continue
        if name.startswith('identity.'):
            what = name.removeprefix('identity.')
            if name in old and comparable:
                raise InputError(
                    f'{workdir} holds a run on other data (its {what} are not these): give another '
                    '--workdir; bert_jax.evaluate scores a finished run on other data')
            if name in old:  # it may go on with more text
                print(f'warning: the run was trained on other data so far: {what} was {before}, '
                      f'now {now}')
        elif name.startswith(fixed) and name not in _OF_THE_COMPUTATION:
            raise InputError(
                f'{workdir} holds a run with {name}={before!r}, the config says {now!r}: give '
                'another --workdir, or the config of that run')
        elif name == 'init_checkpoint':  # the run resumes from its own checkpoint
            print(f'warning: the run started from init_checkpoint={before!r}, which stays; '
                  f'{now!r} is not used: to start from it, give another --workdir')
            resolved['init_checkpoint'] = before
        elif name == 'train.skip_steps' and (
                late := [step for step in now if step not in (before or ()) and step <= newest]):
            print(f"warning: {name}: the newest checkpoint is past {', '.join(map(str, late))}, "
                  'which stays as it was: to train on other rows there, move the checkpoints from '
                  f"there on out of {workdir / 'checkpoints'}")
            resolved['train']['skip_steps'] = [step for step in now if step not in late]
        elif name == 'init_step':
            if before is not None:
                print(f'warning: the run started from step {before:,} of init_checkpoint, which '
                      f'is at {now or 0:,} now: to start from that, give another --workdir')
                resolved[name] = before
        elif name == 'init_saved':
            if before is not None and old.get('init_step') == new.get('init_step'):
                print('warning: init_checkpoint was made anew after this run started from it: to '
                      'start from what it is now, give another --workdir')
                resolved[name] = before
        elif name in old:
            print(f'note: {name} was {before!r} in this run so far, now {now!r}' + (
                f'; warning: the learning rate goes on from step {newest:,} of the new schedule: '
                'to have it from the start, give another --workdir') * (name == 'train.steps'))
    if vocab_path is not None:
        kept = find_vocabulary(workdir)
        if kept is None or kept.read_bytes() != vocab_path.read_bytes():
            raise InputError(
                f'{workdir} holds a run with another vocabulary than {vocab_path}: give another '
                '--workdir' + (f', or --config.data.vocab_file={kept}' if kept else ''))


def _each_phase(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, with the list of phases replaced by the fields of each phase, numbered from 1."""
    unstated = {name: fields.get(path, _DEFAULTS.get(path)) for name, path in PHASE_FIELDS.items()
                if name in PHASE_ROWS and name != 'source'}
    numbered = {str(i): unstated | phase for i, phase in enumerate(fields.pop('phases', ()), 1)}
    return fields | flat_fields({'phases': numbered})


def read_run_fields(workdir: Path) -> dict[str, Any]:
    """The fields of a run's `config.json`, by dotted name; `workdir` may be its checkpoint."""
    return flat_fields(read_config(run_of(workdir)))


def check_shared(workdir: Any, seconds: float = 30.0) -> None:
    """Checks that all hosts see the files that the first host writes into the run directory.

    Otherwise each host would save its part of a checkpoint on its local disk and wait for the
    others' parts.

    Args:
      workdir: the run directory; it exists on the first host.
      seconds: how long the other hosts look; network disks lag.

    Raises:
      InputError: a host does not see them; raised on all hosts, naming the first such host.
    """
    if hosts.count() == 1:
        return
    token = files.as_path(workdir) / hosts.share(
        'run directory', lambda: f'.shared-{secrets.token_hex(8)}')
    if hosts.first():
        token.write_text('All hosts of a run look for this file while it starts.\n')
    deadline = time.monotonic() + seconds
    while not (seen := token.exists()) and time.monotonic() < deadline:
        time.sleep(0.2)
    answers = hosts.exchange('run directory', 'seen' * seen)
    if hosts.first():
        token.unlink(missing_ok=True)
    if '' in answers:
        raise InputError(
            f'--workdir={workdir} is not the same folder on all hosts (host {answers.index("")} '
            'does not see what host 0 writes there): name a bucket or a disk that they share')
