"""Names of files and folders that are odd, and places that are something else."""

import os
import random
import shutil
from pathlib import Path

from tests.abuse.classes.case import Case, copy

_NAMES = (
    'a b', 'é', '日本', '\udcff', 'x' * 244, 'x' * 250, 'x' * 256, 'x' * 5000, 'a\nb', 'a\tb',
    '\x1b[31m', 'a\x00b', '-x', '--x', '.hidden', '...', 'a:b', 'gs:x', 'http:x', '%s', '{0}', '*',
    '[a]', '?', '$HOME', '~', '~x', ',', ';', '#', 'CON', 'a,b', 'x.zip', 'x.txt', '.', '..',
    '../new', 'a/b/c/d', 'a//b', 'a/./b', 'a/../b', 'checkpoints', 'notes', 'notes/important.txt',
    'notes/important.txt/x', 'loop', 'loop/x', 'dangling', 'dangling/x', 'to_notes', 'to_notes/x',
    'to_run', 'fifo', 'null', 'read_only/x', '', ' ', 'hf:', 'hf:a', 'hf:a/b/c', 'gs://',
    'text.txt', 'hf_pretraining', 'run', '\ufeff', 'x/' * 2000)


def _make_odd_places(folder: Path) -> None:
    (folder / 'loop').symlink_to('loop')
    (folder / 'dangling').symlink_to('nowhere')
    (folder / 'to_notes').symlink_to('notes')
    (folder / 'to_run').symlink_to('run')
    (folder / 'null').symlink_to('/dev/null')
    os.mkfifo(folder / 'fifo')
    (folder / 'read_only').mkdir(mode=0o500)


def _rename(rng: random.Random, folder: Path, name: str) -> str:
    """Gives the run another name, where a disk has it."""
    try:
        target = folder / 'in' / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder / 'run', target)
    except (OSError, ValueError, RecursionError):  # of pathlib, which makes folders one in another
        return 'run'
    return f'in/{name}'


def draw(rng: random.Random, folder: Path, things: Path) -> Case:
    """A command that reads from or writes to a place with an odd name, or that is none."""
    copy(things, folder, 'run', 'hf_pretraining', 'notes', 'text.txt', 'outside')
    _make_odd_places(folder)
    name = rng.choice(_NAMES)
    place = f'{folder}/{name}' if name[:3] not in ('hf:', 'gs:') else name
    if rng.random() < 0.15:
        place = rng.choice(('/proc/1/x', '/dev/null', '/dev/full', '/sys/x', '/', '.', '..', '//',
                            '/proc/self/fd/1'))
    if rng.random() < 0.35:
        source = f'{folder}/{_rename(rng, folder, name)}'
        commands: tuple[tuple[str, ...], ...] = (
            ('convert', source, f'{folder}/new', '--to', 'huggingface'),
            ('predict', 'features', '--model', source, '--pool=mean', 'a b'),
            ('convert', f'{folder}/hf_pretraining', f'{source}/new', '--to', 'tf1'))
        return Case(done=f'from {source!r:.300}', act=rng.choice(commands),
                    made=('new', f'in/{name}/new', 'run/new'))
    commands = (
        ('convert', f'{folder}/run', place, '--to', rng.choice(('huggingface', 'tf1', 'bert_jax'))),
        ('convert', place, f'{folder}/new', '--to', 'huggingface'),
        ('predict', 'features', '--model', f'{folder}/run', '--pool=mean', '--output', place, 'a'),
        ('predict', 'features', '--model', f'{folder}/run', '--pool=mean', '--input', place),
        ('predict', 'features', '--model', place, '--pool=mean', 'a'),
        ('predict', 'features', '--model', f'{folder}/run', '--vocab-file', place, '--pool=mean',
         'a'),
        ('main', '@synthetic', f'--workdir={place}'),
        ('main', '@synthetic', f'--config.data.dir={place}'),
        ('main', '@text', f'--config.data.source={place}',
         f'--config.data.vocab_file={folder}/run/vocab.txt'),
        ('main', '@text', f'--config.data.vocab_file={place}'),
        ('main', '@csv', f'--config.init_checkpoint={place}'),
        ('main', f'--config={place}'),
        ('evaluate', place),
        ('evaluate', f'{folder}/run', f'--workdir={place}'),
        ('report', place, f'--output={folder}/new'),
        ('look', '@text', f'--config.data.source={place}'),
        ('prepare', '@text', f'--config.data.source={place}'),
        ('bench', f'--json={place}', '--steps=0'),
        ('glue_submission', place),
        ('convert', f'{folder}/run', f'{folder}/new', '--to', 'huggingface', f'--card={place}'),
    )
    made = ('new', name, 'cache', 'nowhere', name.partition('/')[0], 'here')
    if name.startswith(('notes', 'to_notes', 'run', 'text', 'hf_pre', '..')):
        made = ('new', 'cache', 'notes/x', 'run/cache', 'here')
    return Case(done=f'{place!r:.300}', act=rng.choice(commands), made=made)
