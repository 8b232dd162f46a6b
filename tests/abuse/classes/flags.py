"""Flags and fields: of other types, in other forms, with names that are something else."""

import random
from pathlib import Path

from bert_jax.config.fields import FIELDS
from tests.abuse.classes.case import WORDS_OF_FLAGS, Case, copy, write

_CONFIGS = (
    '@synthetic', '@synthetic', '@text', '@glue', '@csv', '--config=configs/tagging.py',
    '--config=configs/squad.py', '--config=configs/multiple_choice.py',
    '--config=configs/regression.py', '@text', '--config=configs/conll.py')
_COMMANDS = {
    'predict fill-mask': ('--top-k', '--dtype', '--vocab-file', '--input', '--text', '--text-pair',
                          '--id'),
    'predict classify': ('--windows', '--choices', '--pairs', '--any-form', '--text', '--input'),
    'predict answer': ('--max-answer-length', '--null-threshold', '--input'),
    'predict features': ('--layers', '--pool', '--normalize', '--output', '--windows'),
    'predict export': ('--to', '--opset', '--output'),
    'convert': ('--to', '--card', '--overwrite', '--vocab-file', '--head'),
    'evaluate': ('--config', '--labels_by_position', '--config.data.eval_source', '--workdir'),
    'report': ('--output', '--text', '--against', '--board', '--reference', '--paper'),
    'sweep': ('--grid', '--restarts', '--chips', '--keep', '--config', '--worker', '--workdir'),
    'look': ('--vocab_sizes', '--config', '--config.data.source'),
    'preflight': ('--topology', '--price', '--json', '--programs', '--save_programs', '--best'),
    'bench': ('--model', '--batch_size', '--json', '--repeats', '--steps', '--seq',
              '--predictions'),
    'glue_submission': ('--fill-missing', '--x', '-o'),
    'mine': ('--model', '--input', '--text', '--corpus', '--negatives', '--top-k', '--margin'),
    'paper': ('--scale', '--rows', '--columns', '--seeds', '--pretrain', '--finetune', '--weights',
              '--data'),
    'prepare': ('--config', '--config.data.source', '--workdir'),
}
_OF_TASKS = (  # sections
    'classification.', 'regression.', 'squad.', 'conll.', 'tagging.', 'retrieval.', 'reranking.')
# Values of a field's own type, if not its own.
_LIKELY = {
    bool: ('True', 'False'),
    int: ('0', '1', '2', '3', '5', '7', '8', '16', '64', '100', '1000', '-1', '65536'),
    float: ('0', '0.1', '0.5', '1.0', '1e-5', '1e-12', '2', '100', '-0.5', '1e38'),
    str: ('10%', '2 steps', '1 epoch', 'text', 'full', 'auto', 'mean', 'tiny', 'float32', 'a,b',
          '/nope', 'none', 'label', '0', '1', '1000', 'adam', 'lion', 'f1', 'spans', 'kernel'),
}
_CONFIG_TEXTS = (
    '\ufeff', '', '#', '\x00', 'x = ', 'import sys; sys.exit(0)\n', 'raise SystemExit("x")\n',
    'import os; os._exit\n', 'while False: pass\n', '\t\n', 'from __future__ import annotations\n',
    'def get_config(a, b): pass\n', 'get_config = 3\n', 'class get_config: pass\n',
    '# -*- coding: x -*-\n', 'def get_config(): yield\n', 'async def get_config(): pass\n',
    'exit()\n', 'import nothing\n', 'assert 0, "a\\nb"\n', 'raise ValueError("\\x1b[31m")\n',
    'raise Exception\n', 'raise ExceptionGroup("x", [ValueError("y")])\n')
_IMPORT = 'from bert_jax.config import default_config\n'
_BEGINNING = f"""{_IMPORT}def get_config():
    c = default_config()
    c.task = 'synthetic'
"""
_LINES = (
    'c.{field} = {value!r}', 'c.{field} = [{value!r}]', 'c.{field} = {{"a": {value!r}}}',
    'c["{field}"] = 1', 'del c.{field}', 'c.unlock(); c.new = {value!r}', 'c.{field} = c',
    'c.{field} = lambda: 3', 'c.{field} = object()', 'c.{field} = None', 'c.{field} = (c,)',
    'c.{field} += 1', 'c.{field} = {value!r} * 2', 'c.{field} = 1j',
    'c.phases = [{{"steps": {value!r}}}]', 'c.phases = ({{}},)', 'c.phases = {value!r}',
    'c = c.{field}', 'c.data.source = [({value!r}, 1.0)]',
    'c.data.source = (({value!r}, {value!r}),)', 'c.{field} = float("nan")')
_ENDS = ('    return c\n', '    return c\n', '    return c\n', '', '    return dict(c)\n',
         '    return c, c\n')


def _of_field(rng: random.Random, folder: Path) -> tuple[str, ...]:
    """A run with one or two fields set to something."""
    config = rng.choice(_CONFIGS)
    line = ['main', config]
    if config != '@synthetic':
        line.append(f'--config.data.vocab_file={folder}/run/vocab.txt')
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        field = rng.choice(sorted(FIELDS))
        while field.startswith(_OF_TASKS) and rng.random() < 0.8:
            field = rng.choice(sorted(FIELDS))
        value = rng.choice(WORDS_OF_FLAGS)
        if rng.random() < 0.75:
            kind = type(FIELDS[field].default)
            value = rng.choice(_LIKELY.get(kind, _LIKELY[str]))
        if rng.random() < 0.85:
            line.append(f'--config.{field}={value}')
            continue
        line += rng.choice((
            [f'--config.{field}', value], [f'-config.{field}={value}'], [f'--noconfig.{field}'],
            [f'--config.{field}'], [f'--config.{field}[0]={value}'],
            [f'--config.{field}.x={value}'],
            [f'--{field}={value}'], [f'--config.{field.upper()}={value}'],
            [f'--config.{field}=={value}'], [f'config.{field}={value}'],
            [f'--config.{field} = {value}']))
    return tuple(line)


def _of_command(rng: random.Random, folder: Path) -> tuple[str, ...]:
    """A command with flags of its own, each with a value that it may not have."""
    command = rng.choice(sorted(_COMMANDS))
    line = command.split()
    model = f'{folder}/{rng.choice(("run", "hf_pretraining", "cola"))}'
    if command.startswith('predict'):
        line += ['--model', model]
        if rng.random() < 0.8 and 'export' not in command:
            line.append(rng.choice(('a [MASK]', *WORDS_OF_FLAGS)))
    elif command == 'convert':
        line += [model, f'{folder}/new']
    elif command in ('evaluate', 'report'):
        line += [model]
    elif command in ('look', 'prepare'):
        line += ['@text']
    elif command == 'sweep':
        line += ['--config=configs/tiny_pretrain.py']
    for _ in range(rng.choice((1, 1, 2))):
        flag = rng.choice((*_COMMANDS[command], '--nope', '-x', '--help=1'))
        value = rng.choice((*WORDS_OF_FLAGS, f'{folder}/notes', f'{folder}/text.txt', 'mean',
                            'tf1', '5', '-1'))
        line += rng.choice(([f'{flag}={value}'], [f'{flag}={value}'], [flag, value], [flag],
                            [f'{flag[1:]}={value}']))
    has_output = any(word.startswith('--output') for word in line)
    if command == 'report' and not has_output:
        line.append(f'--output={folder}/new')
    if command == 'glue_submission' and not has_output:
        line.append(f'{folder}/new')
    if command in ('preflight', 'bench'):  # without which it would compile for minutes
        line += ['--config.nope=1'] if command == 'preflight' else ['--model=nope']
    if command == 'paper':
        line += ['5', '--seeds=0']
    return tuple(line)


def _of_file(rng: random.Random, folder: Path) -> tuple[str, ...]:
    """A config file that somebody wrote."""
    if rng.random() < 0.4:
        text = rng.choice(_CONFIG_TEXTS) + rng.choice(('', _IMPORT))
    else:
        text = rng.choice(('', '\ufeff', '\r\n', '# é\n'))
        text += _BEGINNING
        for _ in range(rng.choice((1, 2))):
            field = rng.choice(sorted(FIELDS))
            value = rng.choice((*WORDS_OF_FLAGS, 3, 0.5, True))
            line = rng.choice(_LINES).format(field=field, value=value)
            text += f'    {line}\n'
        text += rng.choice(_ENDS)
    encoding = rng.choice(('utf-8', 'utf-8', 'utf-8', 'utf-16', 'latin-1'))
    errors = 'surrogateescape' if encoding == 'utf-8' else 'replace'
    write(folder / 'c.py', text.encode(encoding, errors))
    name = f'{folder}/c.py' + rng.choice(('', '', '', ':x', ':', '::', ':a,b'))
    command = rng.choice(('main', 'main', 'sweep', 'look', 'prepare'))
    line = [command, f'--config={name}', f'--config.data.source={folder}/text.txt']
    if command == 'sweep':
        line.append('--restarts=1')
    return tuple(line)


_KINDS = {
    'odd fields': _of_field, 'odd flags': _of_command, 'an odd config file': _of_file}


def draw(rng: random.Random, folder: Path, things: Path) -> Case:
    """A line of flags, or a config file."""
    copy(things, folder, 'run', 'hf_pretraining', 'cola', 'text.txt', 'glue', 'notes')
    write(folder / 't.csv', 'text,label\n' + 'bal dal,a\nfal gal,b\n' * 30)
    kind = rng.choice((*['odd fields'] * 3, *['odd flags'] * 2, 'an odd config file'))
    line = _KINDS[kind](rng, folder)
    return Case(done=kind, act=line, made=('new', 'cache', 'new.npz', '__pycache__', 'here'))
