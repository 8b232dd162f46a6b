"""The paper's tables: rows, columns, published figures, and the runs that each cell needs.

A table is a list of parts. A part is a sweep (tools.sweep): one pre-training over its seeds, or
one fine-tuning task from one pre-trained model over its grid. Parts are named after their resolved
config, so tables share what they have in common.
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
from bert_jax.tools.sweep import Folder, Member, grid_members, member_config
from bert_jax.train.run_directory import flat_fields
from bert_jax.weights import load_weights


@dataclasses.dataclass(frozen=True)
class Task:
    """The fine-tuning of a downstream task in the tables.

    Attributes:
      config: file of configs/, with its argument.
      folder: of its data, below --data.
      grid: settings to search at the paper's scale (sections 4 and 5.3, appendix A.3); the best on
        the dev set counts.
      tiny: further settings at the tiny scale.
    """

    config: str
    folder: str
    grid: tuple[str, ...] = ()
    tiny: tuple[str, ...] = ()


_RATES = ('optimizer.learning_rate=5e-5,4e-5,3e-5,2e-5',)  # of section 4.1
_NER = ('optimizer.learning_rate=5e-5,3e-5,2e-5',)  # of appendix A.3
_SENTENCES = ('conll.document_context=False', 'data.max_seq_length=128', 'train.batch_size=32')
# 3e-4 is the highest rate that google-research/bert names for its miniatures. Taggers do better at
# 1e-3, and far worse at 1e-4.
TINY_GRID = ('optimizer.learning_rate=1e-3,3e-4',)

TASKS: Mapping[str, Task] = {
    **{name: Task(f'glue.py:{name}', 'glue', _RATES, ('train.steps=1 epoch',))
       for name in ('mnli', 'qqp', 'qnli', 'sst2')},
    **{name: Task(f'glue.py:{name}', 'glue', _RATES) for name in ('cola', 'stsb', 'mrpc', 'rte')},
    'squad_v1': Task('squad.py:v1', 'squad', tiny=('data.max_seq_length=256',)),
    'squad_v2': Task('squad.py:v2', 'squad', tiny=('data.max_seq_length=256',)),
    'swag': Task('swag.py', 'swag'),
    'ner': Task('conll.py:documents', 'conll2003', _NER, (*_SENTENCES, 'train.steps=3 epochs')),
    'ner_features': Task(
        'conll.py:features', 'conll2003', tiny=(*_SENTENCES, 'train.steps=2 epochs')),
}
FEATURES = ('embeddings', 'second_to_last', 'last', 'weighted_sum_last_four', 'concat_last_four',
            'weighted_sum_all')


@dataclasses.dataclass(frozen=True)
class Column:
    """A measurement of each row.

    Attributes:
      title: its heading.
      task: one of TASKS; '' for pre-training itself.
      metric: key of the run's result.
      lower: whether less is better.
    """

    title: str
    task: str
    metric: str
    lower: bool = False


COLUMNS: Mapping[str, Column] = {
    'ppl': Column('LM (ppl)', '', 'eval/mlm_perplexity', lower=True),
    'mnli': Column('MNLI-m', 'mnli', 'eval/accuracy'),
    'mnli_mm': Column('MNLI-mm', 'mnli', 'eval/mismatched_accuracy'),
    'qqp': Column('QQP F1', 'qqp', 'eval/f1'),
    'qnli': Column('QNLI', 'qnli', 'eval/accuracy'),
    'sst2': Column('SST-2', 'sst2', 'eval/accuracy'),
    'cola': Column('CoLA', 'cola', 'eval/matthews'),
    'stsb': Column('STS-B', 'stsb', 'eval/spearman'),
    'mrpc': Column('MRPC', 'mrpc', 'eval/accuracy'),
    'mrpc_f1': Column('MRPC F1', 'mrpc', 'eval/f1'),
    'rte': Column('RTE', 'rte', 'eval/accuracy'),
    'squad_v1_em': Column('SQuAD 1.1 EM', 'squad_v1', 'eval/exact_match'),
    'squad_v1': Column('SQuAD 1.1 F1', 'squad_v1', 'eval/f1'),
    'squad_v2_em': Column('SQuAD 2.0 EM', 'squad_v2', 'eval/exact_match'),
    'squad_v2': Column('SQuAD 2.0 F1', 'squad_v2', 'eval/f1'),
    'swag': Column('SWAG', 'swag', 'eval/accuracy'),
    'ner': Column('NER', 'ner', 'eval/f1'),
    'ner_test': Column('NER test', 'ner', 'eval/test_f1'),
    'ner_features': Column('NER, features', 'ner_features', 'eval/f1'),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A model of a table.

    Attributes:
      title: its heading.
      pretraining: NAME of configs/ablations.py, or FILE.py:NAME.
      figures: the paper's, by column.
      finetuning: settings of its downstream runs.
      tiny: NAME at the tiny scale where it differs; None: no such row at that scale.
      share: fraction of the pre-training steps after which it is fine-tuned.
      scratch: fine-tuned from random parameters.
      only: columns that it has; empty: all.
      dev: published dev set figures by column, where `figures` are of the test sets; ours are of
        the dev sets.
    """

    title: str
    pretraining: str
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    finetuning: tuple[str, ...] = ()
    tiny: str | None = ''
    share: float = 1.0
    scratch: bool = False
    only: tuple[str, ...] = ()
    dev: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Table:
    """A table or figure of the paper.

    Attributes:
      title: its heading.
      rows: from top to bottom.
      columns: at the paper's scale.
      tiny: columns at the tiny scale: data that is quick to train on.
      restarts: the paper's seeds of each fine-tuning.
      mean: whether it also has the mean of its columns.
      note: a paragraph below the table.
    """

    title: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    tiny: tuple[str, ...]
    restarts: int = 1
    mean: bool = False
    note: str = ''


def _figures(columns: tuple[str, ...], *values: float) -> dict[str, float]:
    return dict(zip(columns, values, strict=True))


_GLUE = ('mnli', 'mnli_mm', 'qqp', 'qnli', 'sst2', 'cola', 'stsb', 'mrpc_f1', 'rte')
_T5 = ('mnli', 'qnli', 'mrpc', 'sst2', 'squad_v1')
_T6 = ('ppl', 'mnli', 'mrpc', 'sst2')
_T8 = ('mnli', 'ner', 'ner_features')
_FIVE = '30 %, no dropout, triangle, Muon, clipped'
_SCRATCH = Row('not pre-trained', 'base', scratch=True)


def _large(title: str, figures: Mapping[str, float], **fields: Any) -> Row:
    return Row(title, '24/1024/16', figures, tiny='4/256/4', **fields)


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
        note="The paper's figures are of the test sets, which only the GLUE site scores; ours are "
             'of the dev sets. Published dev figures: MNLI-m and SST-2 from tables 5 and 6, QNLI '
             'of Base from table 5, the rest of Base from an independent run in JAX '
             '(nikitakit/sabertooth).',
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
            _large('fine-tuned, Large', {'ner': 96.6, 'ner_test': 92.8},
                   only=('ner', 'ner_test')),
            Row('fine-tuned, Base', 'base', {'ner': 96.4, 'ner_test': 92.4},
                only=('ner', 'ner_test')),
            *(Row(f"features, {layers.replace('_', ' ')}", 'base', {'ner_features': figure},
                  (f'conll.features={layers}',), only=('ner_features',))
              for layers, figure in zip(
                  FEATURES, (91.0, 95.6, 94.9, 95.9, 96.1, 95.5), strict=True)),
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
        note='The paper draws the curve and states: a million steps are almost 1.0 better on MNLI '
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
        mean=True,
        note="Not of the paper. The rows below the first have half of its FLOPs, or a quarter.",
    ),
}


def stem_of(name: str) -> str:
    """File name, without its ending, of the table NAME."""
    return f'table{name}' if name.isdigit() else f'figure_{name}'


CONFIGS = as_path(__file__).parent.parent.parent / 'configs'
# Fields that do not change the result of a run.
_BESIDE = ('seed', 'model.name', 'train.eval_every', 'train.save_every', 'train.log_every',
           'train.keep_checkpoints', 'train.profile', 'train.reference', 'train.loggers',
           'data.dir', 'data.local_dir', 'data.tfds_dir', 'mesh.')
# Figure 5 fine-tunes checkpoints of Base, which has several names, and of LTR.
_KEEPS_STEPS = ('base', 'ltr', '12/768/12', '2/128/2')


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of the command line.

    Attributes:
      tiny: the scale; else the paper's.
      root: the directory of all parts.
      data: folder of the downstream tasks' folders.
      pretrain, finetune: settings 'FIELD=VALUE'; for fine-tuning also 'TASK:FIELD=VALUE'.
      weights: weights that replace pre-training, by NAME of configs/ablations.py.
      seeds: number of pre-training seeds.
      restarts: seeds of each fine-tuning; 0: the table's.
      columns: keys of COLUMNS; empty: the table's.
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
    """A sweep of a table.

    Attributes:
      title: shown to people.
      task: one of TASKS; '' for pre-training.
      config: as --config names it.
      overrides: '--config.FIELD=VALUE' of all members.
      folder: of the sweep, with its members.
      resolved: the config of its members, without the settings in which they differ.
      start: checkpoint or vocabulary file of a pre-training that it starts from, or None.
      before: (part, member) of the pre-training that makes `start`.
    """

    title: str
    task: str
    config: str
    overrides: tuple[str, ...]
    folder: Folder
    resolved: ConfigDict
    start: Path | None = None
    before: tuple[Part, Member] | None = None

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def members(self) -> list[Member]:
        return self.folder.members

    def seconds(self) -> float:
        """Seconds of its finished runs, from their goodput.json."""
        files = [self.folder.run(member) / 'goodput.json' for member in self.members
                 if self.folder.result(member) is not None]
        return sum(sum(json.loads(file.read_text())['seconds'].values())
                   for file in files if file.exists())


def rows_of(table: Table, options: Options) -> list[Row]:
    """The rows at the chosen scale; the title names the model where it is not the paper's."""
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
    settings = *options.pretrain, f'train.keep_checkpoints={10 if name in _KEEPS_STEPS else 2}'
    config = ('' if '.py:' in name else 'ablations.py:') + name + (',tiny' if options.tiny else '')
    return _part(f'pre-training {name}', '', config, settings,
                 grid_members([], options.seeds), sys.maxsize, options.root)


def finetuning(row: Row, task: str, seed: int, table: Table, options: Options) -> Part:
    """Fine-tuning of a row on one of TASKS, from the pre-training with a seed."""
    what = TASKS[task]
    settings = [f'data.source={options.data}/{what.folder}']
    pretrained = _pretraining(row.pretraining, options)
    sizes = config_lib.model_sizes(pretrained.resolved)
    given = options.weights.get(row.pretraining)
    start: Path | None = None
    if given is not None and row.share != 1:
        raise InputError(
            f'--weights {row.pretraining}=...: the row {row.title!r} needs its pre-training')
    if given is None:
        start = pretrained.folder.run(pretrained.members[seed])
        if row.scratch:
            start /= 'vocab.txt'
        elif row.share != 1:
            steps = sum(phase['steps'] for phase in phases(pretrained.resolved))
            start /= f'checkpoints/{round(steps * row.share)}'
    if not row.scratch:
        settings.append(f'init_checkpoint={start or given}')
    else:  # the same model and vocabulary, with random parameters
        model: Mapping[str, Any] = {**pretrained.resolved.model, **sizes}
        vocab_file: object = start
        if given is not None:
            model, vocab_file = _described(given)
        settings += [f'model.{name}={model[name]}' for name in (*sizes, 'initializer_range')]
        settings.append(f'data.vocab_file={vocab_file}')
    if options.tiny:
        settings += what.tiny
    settings += row.finetuning
    for setting in options.finetune:
        of, colon, rest = setting.partition(':')
        if not colon or '=' in of:
            settings.append(setting)
        elif of == task:
            settings.append(rest)
    grid = list(TINY_GRID if options.tiny else what.grid) if what.grid else []
    restarts = options.restarts or table.restarts
    if row.scratch:
        restarts *= options.seeds  # in place of pre-training seeds
    part = _part(f'{task} from {row.title}, seed {seed}', task, what.config, tuple(settings),
                 grid_members(grid, restarts), 1, options.root)
    return part if start is None else dataclasses.replace(
        part, start=start, before=(pretrained, pretrained.members[seed]))


@functools.cache
def _described(given: str) -> tuple[Mapping[str, Any], str]:
    """(Model fields, vocabulary file) of weights that the user names."""
    weights = load_weights(given)
    if weights.vocab_file is None:
        raise InputError(f'--weights ...={given} has no vocabulary: put its vocab.txt there')
    return weights.model, str(weights.vocab_file)


def parts_of(table: Table, options: Options) -> list[Part]:
    """All parts of a table, each once, in an order in which they can run: row after row, so that
    the first rows of the table are complete early."""
    result: dict[Path, Part] = {}
    for row in rows_of(table, options):
        parts = [pretraining(row, options)] + [
            finetuning(row, COLUMNS[name].task, seed, table, options)
            for name in columns_of(table, options)
            if COLUMNS[name].task and (not row.only or name in row.only)
            for seed in seeds_of(row, options)
        ]
        for part in parts:
            if part is not None:
                result.setdefault(part.path, part)
    return list(result.values())


def seeds_of(row: Row, options: Options) -> range:
    """Pre-training seeds of a row: one where its weights are given or it has no pre-training."""
    return range(1 if row.scratch or row.pretraining in options.weights else options.seeds)


def _part(
    title: str, task: str, config: str, settings: tuple[str, ...], members: list[Member], keep: int,
    root: Path,
) -> Part:
    file, overrides = str(CONFIGS / config), tuple(f'--config.{setting}' for setting in settings)
    resolved, name = _resolved(file, overrides, root)
    folder = Folder(root / 'parts' / name, members, keep)
    return Part(title, task, file, overrides, folder, resolved)


@functools.cache
def _resolved(file: str, overrides: tuple[str, ...], root: Path) -> tuple[ConfigDict, str]:
    """(The config of a part, its folder's name); cached, as a table asks after every part.

    The name is a digest of the fields that the result depends on; paths below `root` count without
    it, so that the directory may be moved.
    """
    resolved = member_config(file, list(overrides), Member(()))
    values = flat_fields(json.loads(resolved.to_json_best_effort()))
    if not resolved.init_checkpoint:
        whole = config_lib.complete(resolved)
        values |= {f'model.{name}': get_field(whole, f'model.{name}') for name in whole.model}
        values |= {f'model.{name}': x for name, x in config_lib.model_sizes(whole).items()}
    values = {name: x for name, x in values.items() if not name.startswith(_BESIDE)}
    for name in ('init_checkpoint', 'data.vocab_file'):
        values[name] = str(values[name]).removeprefix(f'{root}/')
    known = json.dumps(values, sort_keys=True)
    return resolved, f'{resolved.task}-{hashlib.sha256(known.encode()).hexdigest()[:12]}'
