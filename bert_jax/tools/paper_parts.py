"""What a table needs, as parts: sweeps of pre-training and of fine-tuning, shared between tables.

A part is known by the config that its runs resolve to, seeds and grid left out: its folder is named
after that, so that two tables, or two calls with other seeds, that need the same run find it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import sys
from collections.abc import Mapping
from typing import Any

from bert_jax import config as config_lib
from bert_jax.config import ConfigDict, get_field
from bert_jax.config.phases import phases
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path
from bert_jax.tools.paper_tables import COLUMNS, TASKS, TINY_GRID, Row, Table
from bert_jax.tools.sweep_folder import Folder
from bert_jax.tools.sweep_grid import Member, grid_members, member_config
from bert_jax.train.run_directory import flat_fields
from bert_jax.weights import load_weights

CONFIGS = as_path(__file__).parent.parent.parent / 'configs'
# What does not change what a run comes to.
_BESIDE = ('seed', 'model.name', 'train.eval_every', 'train.save_every', 'train.log_every',
           'train.keep_checkpoints', 'train.profile', 'train.probe', 'train.reference', 'data.dir',
           'data.local_dir', 'data.tfds_dir', 'mesh.')
# Figure 5 is fine-tuned from the checkpoints of Base, which has several names, and of LTR.
_KEEPS_STEPS = ('base', 'ltr', '12/768/12', '2/128/2')


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line says.

    Attributes:
      tiny: the scale; else the paper's.
      root: the directory of all parts.
      data: folder of the downstream tasks' folders.
      pretrain, finetune: settings 'FIELD=VALUE'; of fine-tuning also 'TASK:FIELD=VALUE'.
      weights: by NAME of configs/ablations.py, what is taken in the place of pre-training.
      seeds: of pre-training.
      restarts: of fine-tuning; 0: the table's.
      columns: keys of COLUMNS; none: the table's.
    """

    tiny: bool
    root: Path
    data: str
    pretrain: tuple[str, ...] = ()
    finetune: tuple[str, ...] = ()
    weights: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seeds: int = 1
    restarts: int = 0
    columns: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Part:
    """A sweep.

    Attributes:
      title: for people.
      kind: parts that take about as long.
      config: as --config names it.
      overrides: '--config.FIELD=VALUE' of all members.
      members: its runs.
      path: its folder.
      resolved: the config of its members, but for what they differ in.
      start: a checkpoint, or a file, that has to be there before; or None.
      before: (its part's `path`, member) of the pre-training that `start` is of; or None.
      sizes: of the model, as `config.model_sizes`.
      keep: of how many runs, the best, the checkpoints are kept.
    """

    title: str
    kind: str
    config: str
    overrides: tuple[str, ...]
    members: tuple[Member, ...]
    path: Path
    resolved: ConfigDict
    start: Path | None
    before: tuple[Path, Member] | None
    sizes: Mapping[str, int]
    keep: int

    @functools.cached_property
    def folder(self) -> Folder:
        """Of the sweep; a failure counts from when it is first asked for."""
        return Folder(self.path, list(self.members), self.keep)

    def seconds(self) -> list[float]:
        """What its finished runs took, as their goodput.json says."""
        found = []
        for member in self.members:
            path = self.folder.run(member) / 'goodput.json'
            if self.folder.result(member) is not None and path.exists():
                found.append(sum(json.loads(path.read_text())['seconds'].values()))
        return found


def rows_of(table: Table, options: Options) -> list[Row]:
    """The rows of a table at a scale, with the NAME that they have there, in the title as well."""
    if not options.tiny:
        return list(table.rows)
    return [dataclasses.replace(row, title=f'{row.title} (here {row.tiny})', pretraining=row.tiny)
            if row.tiny else row for row in table.rows if row.tiny is not None]


def columns_of(table: Table, options: Options) -> tuple[str, ...]:
    """The columns of a table at a scale."""
    return options.columns or (table.tiny if options.tiny else table.columns)


def pretraining(row: Row, options: Options) -> Part | None:
    """The pre-training of a row; None where its weights are given."""
    return None if row.pretraining in options.weights else _pretraining(row.pretraining, options)


def _pretraining(name: str, options: Options) -> Part:
    kept = 10 if name in _KEEPS_STEPS else 2
    return _part(
        f'pre-training {name}', f'pre-training {name}',
        ('' if '.py:' in name else 'ablations.py:') + name + (',tiny' if options.tiny else ''),
        (*options.pretrain, f'train.keep_checkpoints={kept}'),
        grid_members([], options.seeds), None, None, None, sys.maxsize, options.root,
    )


def finetuning(row: Row, task: str, seed: int, table: Table, options: Options) -> Part:
    """Fine-tuning of a row, from the pre-training of a seed, on one of TASKS."""
    what = TASKS[task]
    settings = [f'data.source={options.data}/{what.folder}', *what.settings]
    before = _pretraining(row.pretraining, options)
    start: Path | None = None
    if row.pretraining in options.weights:
        given = options.weights[row.pretraining]
        if row.share != 1:
            raise InputError(
                f'--weights {row.pretraining}=...: the row {row.title!r} needs its pre-training')
        if row.scratch:  # the same model and vocabulary, at random parameters
            model, vocab_file = _described(given)
            settings += [f'model.{name}={model[name]}' for name in before.sizes]
            settings.append(f'data.vocab_file={vocab_file}')
            settings.append(f'model.initializer_range={model["initializer_range"]}')
        else:
            settings.append(f'init_checkpoint={given}')
    else:
        run = before.path / 'runs' / before.members[seed].name
        if row.scratch:
            start = run / 'vocab.txt'
            settings += [f'model.{name}={size}' for name, size in before.sizes.items()]
            settings.append(f'data.vocab_file={start}')
            settings.append(f'model.initializer_range={before.resolved.model.initializer_range}')
        else:
            steps = sum(phase['steps'] for phase in phases(before.resolved))
            at = f'checkpoints/{round(steps * row.share)}'
            start = run / at if row.share != 1 else run
            settings.append(f'init_checkpoint={start}')
    if options.tiny:
        settings += what.tiny
    settings += row.finetuning
    for setting in options.finetune:
        of, colon, rest = setting.partition(':')
        if not colon or '=' in of:
            settings.append(setting)
        elif of == task:
            settings.append(rest)
    grid = [] if task == 'ner_features' or not what.grid else list(
        TINY_GRID if options.tiny else what.grid)
    restarts = options.restarts or table.restarts
    if row.scratch:
        restarts *= options.seeds  # in the place of seeds of the pre-training
    return _part(
        f'{task} from {row.title}, seed {seed}', task, what.config, tuple(settings),
        grid_members(grid, restarts), start,
        None if start is None else (before.path, before.members[seed]), before.sizes, 1,
        options.root,
    )


@functools.cache
def _described(given: str) -> tuple[Mapping[str, Any], str]:
    """(The fields of the model, the vocabulary file) of weights that the user names."""
    weights = load_weights(given)
    if weights.vocab_file is None:
        raise InputError(f'--weights ...={given} has no vocabulary: put its vocab.txt there')
    return weights.model, str(weights.vocab_file)


def parts_of(table: Table, options: Options) -> list[Part]:
    """All parts of a table, each once, in an order in which they can be run."""
    rows, columns = rows_of(table, options), columns_of(table, options)
    found: dict[Path, Part] = {}
    # A row after the other, so that the first rows of the table are there early.
    for row in rows:
        if (part := pretraining(row, options)) is not None:
            found.setdefault(part.path, part)
        for name in columns:
            if COLUMNS[name].task and (not row.only or name in row.only):
                for seed in seeds_of(row, options):
                    part = finetuning(row, COLUMNS[name].task, seed, table, options)
                    found.setdefault(part.path, part)
    return list(found.values())


def seeds_of(row: Row, options: Options) -> range:
    """Of the pre-training; given weights are one, and so is none."""
    return range(1 if row.scratch or row.pretraining in options.weights else options.seeds)


def _part(
    title: str, kind: str, config: str, settings: tuple[str, ...], members: list[Member],
    start: Path | None, before: tuple[Path, Member] | None, sizes: Mapping[str, int] | None,
    keep: int, root: Path,
) -> Part:
    """A part; `sizes` None: those of its own config."""
    overrides = tuple(f'--config.{setting}' for setting in settings)
    file = str(CONFIGS / config)
    resolved, name = _resolved(file, overrides, root)
    return Part(
        title, kind, file, overrides, tuple(members), root / 'parts' / name, resolved, start,
        before, config_lib.model_sizes(resolved) if sizes is None else sizes, keep,
    )


@functools.cache
def _resolved(file: str, overrides: tuple[str, ...], root: Path) -> tuple[ConfigDict, str]:
    """(The config of a part, its folder's name); a table asks for them after every part."""
    resolved = member_config(file, list(overrides), Member(()))
    known = json.dumps(identity(resolved, root), sort_keys=True)
    return resolved, f'{resolved.task}-{hashlib.sha256(known.encode()).hexdigest()[:12]}'


def identity(config: ConfigDict, root: Path) -> dict[str, Any]:
    """What a run of this config comes to depends on, by field; paths below `root` without it."""
    values = flat_fields(json.loads(config.to_json_best_effort()))
    if not config.init_checkpoint:
        whole = config_lib.complete(config)
        values |= {f'model.{name}': get_field(whole, f'model.{name}') for name in whole.model}
        values |= {f'model.{name}': x for name, x in config_lib.model_sizes(whole).items()}
    values = {name: x for name, x in values.items() if not name.startswith(_BESIDE)}
    for name in ('init_checkpoint', 'data.vocab_file'):
        values[name] = str(values[name]).removeprefix(f'{root}/')
    return values
