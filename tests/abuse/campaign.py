"""Careless and hostile cases of many classes, drawn from a seed: none may do harm.

A case is a file, a flag or an argument that is not what it should be, and the command or the call
that meets it. It must be answered with a result or with an error in one line. Harm is anything
else: a traceback, a crash, NaN in a result, more than a minute or 2 GB, a file changed that the
command does not write, a control character on a terminal, something left in the temporary folder.
In the classes 'same ids', 'same labels', 'same weights' and 'same adapter' it is also harm if what
is read is not what the program that the file is of reads, and no line says so.
"""

import contextlib
import importlib
import io
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from unittest import mock

from bert_jax.runtime import process
from bert_jax.runtime.errors import visible
from bert_jax.tools.sweep import training
from bert_jax.train import describing, experiment
from tests.abuse.classes import (
    archives,
    caches,
    datasets,
    flags,
    foreign,
    library,
    native,
    oracles,
    people,
    places,
    records,
    scripts,
    streams,
    sweeps,
    tables,
    vocabularies,
)
from tests.abuse.classes.case import Case, Draw, is_clean
from tests.abuse.commands import Answer, arguments, contents, make, open_command, start
from tests.abuse.forked import Ended, run_forked, warm_up
from tests.abuse.outcome import Outcome
from tests.conftest import ROOT

CLASSES: dict[str, Draw] = {
    'foreign JSON': foreign.draw,
    'tables': tables.draw,
    'data sets': datasets.draw,
    'native readers': native.draw,
    'records and pictures': records.draw,
    'archives': archives.draw,
    'places': places.draw,
    'streams and limits': streams.draw,
    'text for people': people.draw,
    'flags': flags.draw,
    'scripts': scripts.draw,
    'caches': caches.draw,
    'vocabularies': vocabularies.draw,
    'sweeps': sweeps.draw,
    'library': library.draw,
}
if oracles.is_possible():  # they compare with programs of the extra [parity]
    CLASSES |= {
        'same ids': oracles.draw_ids,
        'same labels': oracles.draw_labels,
        'same weights': oracles.draw_weights,
        'same adapter': oracles.draw_adapter,
    }
_SECONDS = 60.0
_ADDRESSES = 16 << 30  # bytes that a case may map, so that it takes no other process's memory
# Also imported before the first fork: what reads text and pictures takes ten seconds to load.
_IMPORTED = ('tensorflow', 'tensorflow_text', 'bert_jax.corpus.tokenize_tensorflow',
             'bert_jax.corpus.records', 'bert_jax.predict.model', 'bert_jax.predict.answers',
             'bert_jax.predict.tags', 'bert_jax.foreign.tf1', 'matplotlib.pyplot', 'pandas',
             'pyarrow', 'huggingface_hub', 'torch', 'transformers', 'peft')
_PLACE = Path('here', 'in')  # a case's working directory; what is named '..' is in its folder too


def make_things(folder: Path) -> None:
    """Makes what cases are drawn from."""
    make(folder)
    foreign.make(folder / 'json')
    native.make(folder)
    caches.make(folder)
    vocabularies.make(folder / 'tokenizers')
    (folder / 'outside').mkdir()
    (folder / 'outside' / 'kept.txt').write_text('not to be changed\n')


def draw_case(group: str, number: int, seed: int, folder: Path, things: Path) -> Case:
    """Makes a case of a class in a folder, with an empty `_PLACE`, of a seed and a number."""
    rng = random.Random(f'{seed} {number} {group}')
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    case = CLASSES[group](rng, folder, things)
    (folder / _PLACE).mkdir(parents=True)
    return case


def judged(group: str, number: int, case: Case, ended: Ended, changed: str) -> Outcome:
    """What came of a case.

    Args:
      group, number: of the case.
      case: as drawn.
      ended: how its command or call ended.
      changed: a file that it should not have changed, or ''.
    """
    answer = ended.answer
    harm = ended.harm
    if harm == 'NaN' and callable(case.act):
        harm = ''  # what is printed of data may have a label of this name
    if not harm and changed:
        harm = f'changed {changed}'
    if not harm and ended.seconds > _SECONDS:
        harm = f'{ended.seconds:.0f} s'
    if not harm and not is_clean(answer.out + answer.err):
        harm = 'control characters'
    if not harm and re.search('out of memory', answer.err):
        harm = 'out of memory'
    if not harm and any(len(line) > 2000 for line in answer.lines):
        harm = 'a line of more than 2,000 characters'
    if not harm:
        harm = case.check(answer)
    result = 'refused' if answer.status else 'read'
    printed = '\n'.join([
        f'{case.done!r:.600}', f'{case.act!r:.600}',
        f'{ended.seconds:.1f} s, {ended.memory:,} bytes, status {answer.status}',
        answer.out[-3000:], answer.err[-3000:]])
    return Outcome(number, group, f'HARM: {harm}' if harm else result, printed, ended.seconds)


def _call(act: object, folder: Path, things: Path) -> None:
    """Does what a case says in this process, and ends it as a command ends."""
    if callable(act):
        try:
            act()
        except Exception as error:
            line, status = process.describe_error(error)
            print(f'error: {visible(line)}', file=sys.stderr)
            sys.exit(status)
        return
    assert isinstance(act, (str, tuple))
    with (mock.patch.object(experiment, 'train_run', _begin_run),
          mock.patch.object(training, 'work_until_done', lambda *_: sys.exit(0))):
        start(*arguments(act, folder, things))


def _begin_run(program: object, workdir: Path, *_: object, **__: object) -> dict[str, float]:
    """In place of training: looks whether the run could begin."""
    describing.check_start(program, workdir, describing.describe(program))
    return {'step': 0}


def in_fork(case: Case, folder: Path, things: Path) -> Ended:
    """Does what a case says in a fork of this process."""
    def act() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
        _call(case.act, folder, things)

    return run_forked(
        act, case.stdin, _SECONDS, case.environment, place=folder / _PLACE)


def in_this_process(case: Case, folder: Path, things: Path) -> Ended:
    """Does what a case says here; its memory is not measured."""
    began = time.monotonic()
    place = folder / _PLACE
    with mock.patch.dict(os.environ, case.environment):
        if callable(case.act):
            with contextlib.chdir(place):
                answer = _called(case)
        else:
            answer = open_command(case.act, folder, things, case.stdin, int(_SECONDS), place)
    return Ended(answer, time.monotonic() - began, 0)


def _called(case: Case) -> Answer:
    out = io.StringIO()
    err = io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            _call(case.act, Path(), Path())
        except SystemExit as ended:
            status = int(ended.code or 0)
    return Answer(status, out.getvalue(), err.getvalue())


def changed_file(case: Case, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """A file that a case made, changed or removed and should not have, or ''."""
    places = [os.path.normpath(made) for made in case.made]
    for name in sorted(before.keys() | after.keys()):
        is_made = any(name == made or name.startswith(f'{made}/') for made in places)
        if before.get(name) != after.get(name) and not is_made:
            return name
    return ''


def here(
    group: str, numbers: Iterable[int], seed: int, folder: Path, things: Path
) -> Iterator[Outcome]:
    """For each number, draws a case of a class and does what it says in this process."""
    for number in numbers:
        case = draw_case(group, number, seed, folder, things)
        before = contents(folder)
        ended = in_this_process(case, folder, things)
        changed = changed_file(case, before, contents(folder))
        yield judged(group, number, case, ended, changed)


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Sizes and times of the files below a folder."""
    return {str(path): (path.lstat().st_size,
                        path.lstat().st_mtime_ns) for path in folder.rglob('*')}


def campaign(
    numbers: Iterable[int], seed: int, folder: Path, groups: Iterable[str] = tuple(CLASSES),
) -> Iterator[Outcome]:
    """For each number, draws a case of a class and does what it says in a fork.

    Home, temporary folder and working directory of the forks are in `folder`, and so is all that
    they may change.
    """
    os.environ |= {'HOME': str(folder / 'home'), 'TMPDIR': str(folder / 'tmp'),
                   'HF_HUB_OFFLINE': '1', 'HF_HOME': str(folder / 'home' / 'hub'),
                   'TORCHINDUCTOR_CACHE_DIR': str(folder / 'home' / 'torch'),
                   'PYTHONPATH': str(ROOT)}
    for name in ('home', 'tmp'):
        (folder / name).mkdir()
    tempfile.tempdir = str(folder / 'tmp')
    warm_up()
    for name in _IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    things = folder / 'things'
    (folder / 'case').mkdir()  # runs hold paths: they are made where the cases are
    made = run_forked(lambda: make_things(folder / 'case'), seconds=900)
    assert made.answer.status == 0, made.answer.err
    (folder / 'case').rename(things)
    kept = _stamps(things)
    names = sorted(groups)
    case_folder = folder / 'case'
    for number in numbers:
        group = names[number % len(names)]
        case = draw_case(group, number, seed, case_folder, things)
        before = contents(case_folder)
        ended = in_fork(case, case_folder, things)
        changed = changed_file(case, before, contents(case_folder))
        if _stamps(things) != kept:
            changed = 'what is outside of its folder'
        left = [path.name for path in (folder / 'tmp').iterdir()]
        if left and not changed:
            changed = f'the temporary folder: {left[0]}'
        for path in (folder / 'tmp').iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield judged(group, number, case, ended, changed)
