"""The paper's tables as data: rows, the config of each, columns, and the paper's figures.

Devlin et al. (2018), arXiv 1810.04805v2. `tools.paper` runs them. Figures are per cent, but for
perplexities. A row without a figure is ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


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
    """What is measured of each row.

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
