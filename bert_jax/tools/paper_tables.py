"""The paper's tables: rows, columns, published figures, and the runs that each cell needs."""

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
from bert_jax.tools.sweep import Folder, Member, grid_members, member_config
from bert_jax.train.run_directory import flat_fields
from bert_jax.weights import load_weights


@dataclasses.dataclass(frozen=True)
class Task:
    """A downstream task as a table fine-tunes it.

    Attributes:
      config: file of configs/, with its argument.
      folder: of its data, under the folder that is given.
      grid: of fine-tuning at the paper's scale (sections 4 and 5.3, appendix A.3); the best on the
        dev set counts.
      examples: of the official training set.
      tokens: of a row, at most, for the reckoning of costs.
      settings: of all its runs.
      tiny: further settings of a tiny model.
    """

    config: str
    folder: str
    grid: tuple[str, ...]
    examples: int
    tokens: int
    settings: tuple[str, ...] = ()
    tiny: tuple[str, ...] = ()


_RATES = ('optimizer.learning_rate=5e-5,4e-5,3e-5,2e-5',)  # of section 4.1
_NER = ('optimizer.learning_rate=5e-5,3e-5,2e-5',)  # of appendix A.3
_SENTENCES = ('conll.document_context=False', 'data.max_seq_length=128', 'train.batch_size=32')
# The highest rate that google-research/bert names for its miniatures, and one above, which taggers
# do better with; 1e-4 left them far behind.
TINY_GRID = ('optimizer.learning_rate=1e-3,3e-4',)

TASKS: Mapping[str, Task] = {
    **{name: Task(f'glue.py:{name}', 'glue', _RATES, examples, 128, tiny=tiny)
       for name, examples, tiny in (
           ('mnli', 392_702, ('train.steps=1 epoch',)), ('qqp', 363_846, ('train.steps=1 epoch',)),
           ('qnli', 104_743, ('train.steps=1 epoch',)), ('sst2', 67_349, ('train.steps=1 epoch',)),
           ('cola', 8_551, ()), ('stsb', 5_749, ()), ('mrpc', 3_668, ()), ('rte', 2_490, ()))},
    'squad_v1': Task('squad.py:v1', 'squad', (), 87_599, 384, tiny=('data.max_seq_length=256',)),
    'squad_v2': Task('squad.py:v2', 'squad', (), 130_319, 384, tiny=('data.max_seq_length=256',)),
    'swag': Task('swag.py', 'swag', (), 73_546, 512),
    'ner': Task('conll.py:documents', 'conll2003', _NER, 14_041, 512,
                tiny=(*_SENTENCES, 'train.steps=3 epochs')),
    'ner_features': Task('conll.py:features', 'conll2003', (), 14_041, 512,
                         tiny=(*_SENTENCES, 'train.steps=2 epochs')),
}
FEATURES = ('embeddings', 'second_to_last', 'last', 'weighted_sum_last_four', 'concat_last_four',
            'weighted_sum_all')


@dataclasses.dataclass(frozen=True)
class Column:
    """A measurement of each row.

    Attributes:
      title: at its head.
      task: one of TASKS; '' is pre-training itself.
      metric: of its result.
      band: by how much a result may fall short of the paper's figure and pass: what seeds do, as
        far as independent runs of others tell, else a guess (section 1 of the sources in TABLES).
      lower: whether less is better.
    """

    title: str
    task: str
    metric: str
    band: float
    lower: bool = False


COLUMNS: Mapping[str, Column] = {
    'ppl': Column('LM (ppl)', '', 'eval/mlm_perplexity', 0.3, lower=True),
    'probe': Column('probe', '', 'eval/probe_accuracy', 1.0),  # with --pretrain train.probe=FILE
    'mnli': Column('MNLI-m', 'mnli', 'eval/accuracy', 0.6),
    'mnli_mm': Column('MNLI-mm', 'mnli', 'eval/mismatched_accuracy', 0.6),
    'qqp': Column('QQP F1', 'qqp', 'eval/f1', 0.5),
    'qnli': Column('QNLI', 'qnli', 'eval/accuracy', 1.0),
    'sst2': Column('SST-2', 'sst2', 'eval/accuracy', 0.8),
    'cola': Column('CoLA', 'cola', 'eval/matthews', 3.0),
    'stsb': Column('STS-B', 'stsb', 'eval/spearman', 1.0),
    'mrpc': Column('MRPC', 'mrpc', 'eval/accuracy', 2.0),
    'mrpc_f1': Column('MRPC F1', 'mrpc', 'eval/f1', 1.5),
    'rte': Column('RTE', 'rte', 'eval/accuracy', 3.0),
    'squad_v1_em': Column('SQuAD 1.1 EM', 'squad_v1', 'eval/exact_match', 0.6),
    'squad_v1': Column('SQuAD 1.1 F1', 'squad_v1', 'eval/f1', 0.5),
    'squad_v2_em': Column('SQuAD 2.0 EM', 'squad_v2', 'eval/exact_match', 0.8),
    'squad_v2': Column('SQuAD 2.0 F1', 'squad_v2', 'eval/f1', 0.8),
    'swag': Column('SWAG', 'swag', 'eval/accuracy', 1.0),
    'ner': Column('NER', 'ner', 'eval/f1', 0.4),
    'ner_test': Column('NER test', 'ner', 'eval/test_f1', 0.5),
    'ner_features': Column('NER, features', 'ner_features', 'eval/f1', 0.6),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A model of a table.

    Attributes:
      title: of the row.
      pretraining: NAME of configs/ablations.py, or FILE.py:NAME.
      figures: of the paper, by column.
      finetuning: settings of its downstream runs.
      tiny: the NAME at the tiny scale, where it is another; None: it has no such row.
      share: of the pre-training steps, after which it is fine-tuned.
      scratch: it is not pre-trained at all.
      only: columns that it has; none: all.
      dev: by column, what others have on the dev sets, where `figures` are of the test sets, which
        are not scored here: ours are judged by these, where there is one.
    """

    title: str
    pretraining: str
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    finetuning: tuple[str, ...] = ()
    tiny: str | None = ''
    share: float = 1.0
    scratch: bool = False
    only: tuple[str, ...] = ()
    dev: Mapping[str, float] | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """A table or figure of the paper.

    Attributes:
      title: of it.
      rows: in their order.
      columns: at the paper's scale.
      tiny: columns at the tiny scale: data that is quick to train on.
      restarts: seeds of each fine-tuning, of the paper.
      curves: rows that are one recipe with more or less FLOPs, by its name; such a table has the
        mean of its columns as well, and a picture of that over FLOPs.
      note: what is to be known about it, for its foot.
    """

    title: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    tiny: tuple[str, ...]
    restarts: int = 1
    curves: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    note: str = ''


def _figures(columns: tuple[str, ...], *values: float) -> dict[str, float]:
    return dict(zip(columns, values, strict=True))


_GLUE = ('mnli', 'mnli_mm', 'qqp', 'qnli', 'sst2', 'cola', 'stsb', 'mrpc_f1', 'rte')
_T5 = ('mnli', 'qnli', 'mrpc', 'sst2', 'squad_v1')
_T6 = ('ppl', 'mnli', 'mrpc', 'sst2')
_T8 = ('mnli', 'ner', 'ner_features')
_FIVE = '30 %, no dropout, triangle, Muon, clipped'
_SCRATCH = Row('not pre-trained', 'base', scratch=True)


def _large(
    title: str, figures: Mapping[str, float], only: tuple[str, ...] = (),
    dev: Mapping[str, float] | None = None,
) -> Row:
    return Row(title, '24/1024/16', figures, tiny='4/256/4', only=only, dev=dev)


TABLES: Mapping[str, Table] = {
    '1': Table(
        'Table 1: GLUE', (
            Row('BERT-Base', 'base', _figures(
                _GLUE, 84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4),
                dev=_figures(_GLUE, 84.4, 85.5, 87.0, 88.4, 92.7, 56.5, 88.3, 90.8, 70.4)),
            _large('BERT-Large', _figures(
                _GLUE, 86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1),
                dev={'mnli': 86.6, 'sst2': 93.7}),
        ), _GLUE, ('sst2', 'cola', 'stsb', 'mrpc_f1', 'rte'),
        note="The paper's figures are of the test sets, which the GLUE site alone scores; ours are "
             'of the dev sets, and judged by what is known of those: MNLI-m and SST-2 '
             "from the paper's tables 5 and 6, QNLI of Base from table 5, the rest of Base from an "
             'independent run in JAX (nikitakit/sabertooth).',
    ),
    '2': Table(
        'Table 2: SQuAD 1.1, dev', (
            Row('BERT-Base (single)', 'base', _figures(('squad_v1_em', 'squad_v1'), 80.8, 88.5)),
            _large('BERT-Large (single)', _figures(('squad_v1_em', 'squad_v1'), 84.1, 90.9)),
        ), ('squad_v1_em', 'squad_v1'), ('squad_v1_em', 'squad_v1'),
        note='Without the rows of ensembles (bert_jax.evaluate) and of TriviaQA.',
    ),
    '3': Table(
        'Table 3: SQuAD 2.0, dev', (
            _large('BERT-Large (single)', _figures(('squad_v2_em', 'squad_v2'), 78.7, 81.9)),
        ), ('squad_v2_em', 'squad_v2'), ('squad_v2_em', 'squad_v2'),
    ),
    '4': Table(
        'Table 4: SWAG, dev', (
            Row('BERT-Base', 'base', {'swag': 81.6}),
            _large('BERT-Large', {'swag': 86.6}),
        ), ('swag',), ('swag',),
        note='Of the tables of others, 80.2 to 80.7 is what Base was seen to reach elsewhere.',
    ),
    '5': Table(
        'Table 5: pre-training tasks, dev', (
            Row('Base', 'base', _figures(_T5, 84.4, 88.4, 86.7, 92.7, 88.5)),
            Row('No NSP', 'no_nsp', _figures(_T5, 83.9, 84.9, 86.5, 92.6, 87.9)),
            Row('LTR & No NSP', 'ltr', _figures(_T5, 82.1, 84.3, 77.5, 92.1, 77.8)),
            Row('+ BiLSTM', 'ltr', _figures(_T5, 82.1, 84.1, 75.7, 91.6, 84.9),
                ('model.bilstm=True',)),
            _SCRATCH,
        ), _T5, ('mrpc', 'sst2', 'ner'),
    ),
    '6': Table(
        'Table 6: model size, dev', (
            Row('3/768/12', '3/768/12', _figures(_T6, 5.84, 77.9, 79.8, 88.4), tiny='2/128/2'),
            Row('6/768/3', '6/768/3', _figures(_T6, 5.24, 80.6, 82.2, 90.7), tiny=None),
            Row('6/768/12', '6/768/12', _figures(_T6, 4.68, 81.9, 84.8, 91.3), tiny='4/128/2'),
            Row('12/768/12', '12/768/12', _figures(_T6, 3.99, 84.4, 86.7, 92.9), tiny=None),
            Row('12/1024/16', '12/1024/16', _figures(_T6, 3.54, 85.7, 86.9, 93.3), tiny='2/256/4'),
            _large('24/1024/16', _figures(_T6, 3.23, 86.6, 87.8, 93.7)),
        ), _T6, ('ppl', 'mrpc', 'sst2', 'ner'), restarts=5,
    ),
    '7': Table(
        'Table 7: CoNLL-2003 NER', (
            _large('fine-tuned, Large', {'ner': 96.6, 'ner_test': 92.8}, ('ner', 'ner_test')),
            Row('fine-tuned, Base', 'base', {'ner': 96.4, 'ner_test': 92.4},
                only=('ner', 'ner_test')),
            *(Row(f"features, {kind.replace('_', ' ')}", 'base', {'ner_features': figure},
                  (f'conll.features={kind}',), only=('ner_features',))
              for kind, figure in zip(FEATURES, (91.0, 95.6, 94.9, 95.9, 96.1, 95.5), strict=True)),
        ), ('ner', 'ner_test', 'ner_features'), ('ner', 'ner_features'), restarts=5,
        note='The paper has a cased model: give its vocabulary, and data.lowercase=False.',
    ),
    '8': Table(
        'Table 8: masking (masked / the same / random), dev', tuple(
            Row(mix, 'base' if mix == '80/10/10' else mix, _figures(_T8, *figures))
            for mix, *figures in (
                ('80/10/10', 84.2, 95.4, 94.9), ('100/0/0', 84.3, 94.9, 94.0),
                ('80/0/20', 84.1, 95.2, 94.6), ('80/20/0', 84.4, 95.2, 94.7),
                ('0/20/80', 83.7, 94.8, 94.6), ('0/0/100', 83.6, 94.9, 94.6),
            )
        ), _T8, ('mrpc', 'sst2', 'ner'),
    ),
    'c1': Table(
        'Figure 5 (appendix C.1): training steps, dev', tuple(
            Row(f'{title}, {share:.0%} of the steps', name,
                {'mnli': 84.4} if (name, share) == ('base', 1.0) else {}, share=share)
            for name, title in (('base', 'masked LM'), ('ltr', 'left-to-right'))
            for share in (0.1, 0.2, 0.5, 1.0)
        ), ('mnli',), ('mrpc', 'sst2'),
        note='The paper draws the curve and says: a million steps are almost 1.0 better on MNLI '
             'than half of them, and the masked LM is ahead of left-to-right almost at once.',
    ),
    'efficient': Table(
        'Half the compute: the ingredients of configs/efficient_pretrain.py', (
            Row("the paper's recipe", 'efficient_pretrain.py:paper'),
            *(Row(title, f'efficient_pretrain.py:{name}') for title, name in (
                ('half of its steps', 'none'), ('30 % masked', 'masking'),
                ('no dropout', 'dropout'), ('triangle, higher rate', 'rate'), ('Muon', 'muon'),
                ('short rows first', 'lengths'), ('small batches first', 'ramp'),
                ('clipped at 0.5', 'clipping'), ('No NSP', 'no_nsp'), ('all but No NSP', 'all'),
                (_FIVE, 'masking+dropout+rate+muon+clipping'),
                ('a quarter of its steps', 'none/4'), ('Muon, a quarter', 'muon/4'),
                (f'{_FIVE}, a quarter', 'masking+dropout+rate+muon+clipping/4'))),
            dataclasses.replace(_SCRATCH, pretraining='efficient_pretrain.py:paper'),
        ), ('mnli', 'qnli', 'mrpc', 'sst2', 'squad_v1', 'ner'), ('mrpc', 'sst2', 'ner'),
        curves={
            "the paper's recipe": (
                'a quarter of its steps', 'half of its steps', "the paper's recipe"),
            'Muon': ('Muon, a quarter', 'Muon'),
            _FIVE: (f'{_FIVE}, a quarter', _FIVE),
        },
        note="Not of the paper. The rows below the first have half of its FLOPs, or a quarter.",
    ),
}


def stem_of(name: str) -> str:
    """Of the files of the table NAME."""
    return f'table{name}' if name.isdigit() else f'figure_{name}'


CONFIGS = as_path(__file__).parent.parent.parent / 'configs'
# What does not change what a run comes to.
_BESIDE = ('seed', 'model.name', 'train.eval_every', 'train.save_every', 'train.log_every',
           'train.keep_checkpoints', 'train.profile', 'train.probe', 'train.reference', 'data.dir',
           'data.local_dir', 'data.tfds_dir', 'mesh.')
# Figure 5 is fine-tuned from the checkpoints of Base, which has several names, and of LTR.
_KEEPS_STEPS = ('base', 'ltr', '12/768/12', '2/128/2')


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of the command line.

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
        """Seconds of its finished runs, from their goodput.json."""
        result = []
        for member in self.members:
            path = self.folder.run(member) / 'goodput.json'
            if self.folder.result(member) is not None and path.exists():
                result.append(sum(json.loads(path.read_text())['seconds'].values()))
        return result


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
    result: dict[Path, Part] = {}
    # A row after the other, so that the first rows of the table are there early.
    for row in rows:
        if (part := pretraining(row, options)) is not None:
            result.setdefault(part.path, part)
        for name in columns:
            if COLUMNS[name].task and (not row.only or name in row.only):
                for seed in seeds_of(row, options):
                    part = finetuning(row, COLUMNS[name].task, seed, table, options)
                    result.setdefault(part.path, part)
    return list(result.values())


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
    """The fields that the result of a run depends on; paths below `root` without it."""
    values = flat_fields(json.loads(config.to_json_best_effort()))
    if not config.init_checkpoint:
        whole = config_lib.complete(config)
        values |= {f'model.{name}': get_field(whole, f'model.{name}') for name in whole.model}
        values |= {f'model.{name}': x for name, x in config_lib.model_sizes(whole).items()}
    values = {name: x for name, x in values.items() if not name.startswith(_BESIDE)}
    for name in ('init_checkpoint', 'data.vocab_file'):
        values[name] = str(values[name]).removeprefix(f'{root}/')
    return values
