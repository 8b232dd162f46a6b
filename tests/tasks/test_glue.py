"""GLUE's files: columns, labels and ids as in the benchmark; every fault names its place."""

import csv
import dataclasses
import gzip

import numpy as np
import pytest

from bert_jax.rows.table import check_malformed
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.glue import GLUE_TASKS, from_tfds, read_glue
from tests.tasks.files import put
from tests.tasks.opened import parquet

MNLI = ('index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t'
        'sentence1_parse\tsentence2_parse\tsentence1\tsentence2')
STSB = 'index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n'
RTE = 'index\tsentence1\tsentence2\tlabel\n'


@dataclasses.dataclass(frozen=True)
class OfficialFile:
    """A piece of an official file, and the examples in it."""

    task: str
    file: str
    content: str
    texts: list[list[str]]  # by column
    labels: list[float] | None
    ids: list[str]


OFFICIAL = [
    OfficialFile(
        'cola', 'CoLA/train', 'gj04\t1\t\tA fine one.\ncj99\t0\t*\tOne "bad.\n',
        texts=[['A fine one.', 'One "bad.']], labels=[1, 0], ids=['0', '1']),
    OfficialFile(
        'cola', 'CoLA/test', 'index\tsentence\n0\tA.\n1\tB.\n',
        texts=[['A.', 'B.']], labels=None, ids=['0', '1']),
    OfficialFile(
        'sst2', 'SST-2/dev', 'sentence\tlabel\nso " good \t1\nbad \t0\n',
        texts=[['so " good ', 'bad ']], labels=[1, 0], ids=['0', '1']),
    OfficialFile(
        'mrpc', 'MRPC/train',
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n0\t7\t8\tOne " .\tTwo .\r\n',
        texts=[['One " .'], ['Two .']], labels=[0], ids=['0']),
    OfficialFile(
        'mrpc', 'MRPC/test',
        'index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\tOne\tTwo\n',
        texts=[['One'], ['Two']], labels=None, ids=['0']),
    OfficialFile(
        'stsb', 'STS-B/dev', STSB + '3\tg\tf\t2012\t7\tnone\tnone\tOne\tTwo\t3.750\n',
        texts=[['One'], ['Two']], labels=[3.75], ids=['3']),
    OfficialFile(
        'qqp', 'QQP/dev',
        'id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n5\t1\t2\tA?\tB?\t1\n',
        texts=[['A?'], ['B?']], labels=[1], ids=['5']),
    OfficialFile(
        'qqp', 'QQP/test', 'id\tquestion1\tquestion2\n0\tA?\tB?\n',
        texts=[['A?'], ['B?']], labels=None, ids=['0']),
    OfficialFile(
        'mnli', 'MNLI/train',
        MNLI + '\tlabel1\tgold_label\n'
        '0\t1\t1e\tg\tp\tp\tp\tp\tA\tB\tneutral\tentailment\n'
        '1\t1\t1n\tg\tp\tp\tp\tp\tC\tD\tneutral\tneutral\n'
        '2\t1\t1c\tg\tp\tp\tp\tp\tE\tF\tneutral\tcontradiction\n',
        texts=[['A', 'C', 'E'], ['B', 'D', 'F']], labels=[1, 2, 0], ids=['0', '1', '2']),
    OfficialFile(
        'mnli', 'MNLI/test_mismatched', MNLI + '\n0\t1\t1e\tg\tp\tp\tp\tp\tA\tB\n',
        texts=[['A'], ['B']], labels=None, ids=['0']),
    OfficialFile(
        'qnli', 'QNLI/dev', 'index\tquestion\tsentence\tlabel\n0\tQ?\tS.\tnot_entailment\n',
        texts=[['Q?'], ['S.']], labels=[1], ids=['0']),
    OfficialFile(
        'wnli', 'WNLI/train', RTE + '9\tA\tB\t1\n',
        texts=[['A'], ['B']], labels=[1], ids=['9']),
    OfficialFile(
        'ax', 'diagnostic/diagnostic', 'index\tsentence1\tsentence2\n0\tA\tB\n',
        texts=[['A'], ['B']], labels=None, ids=['0']),
    OfficialFile(
        'ax', 'AX/AX', 'index\tsentence1\tsentence2\n0\tA\tB\n',
        texts=[['A'], ['B']], labels=None, ids=['0']),
]


@pytest.mark.parametrize('official', OFFICIAL, ids=lambda official: official.file)
@pytest.mark.parametrize('ending', ['.tsv', '.tsv.gz'])
def test_official_files(official, ending, tmp_path, capsys):
    put(tmp_path, official.file + ending, official.content)
    split = 'test' if official.task == 'ax' else official.file.rpartition('/')[2]
    examples = read_glue(official.task, str(tmp_path), split)
    assert examples.texts == official.texts
    assert examples.ids == official.ids and len(examples) == len(official.ids)
    if official.labels is None:
        assert examples.labels is None
    else:
        assert examples.labels.tolist() == official.labels
        assert examples.labels.dtype == (np.float32 if official.task == 'stsb' else np.int32)
    assert capsys.readouterr().err == ''  # no note, as the file has its official name


def test_json_lines(tmp_path):
    """Labels may be numbers, and ids may be given; without an id, an example has its row number."""
    put(tmp_path, 'MNLI/dev_matched.jsonl.gz', [
        {'premise': 'P', 'hypothesis': 'H', 'label': 'neutral', 'more': 1},
        {'hypothesis': 'H2', 'premise': 'P2', 'label': 'contradiction'}])
    examples = read_glue('mnli', str(tmp_path), 'dev_matched')
    assert examples.texts == [['P', 'P2'], ['H', 'H2']]
    assert examples.labels.tolist() == [2, 0] and examples.ids == ['0', '1']
    put(tmp_path, 'SST-2/dev.jsonl', '{"idx": 7, "sentence": "A", "label": 1}\n'
        '{"idx": 5, "sentence": "B", "label": 0}\n')
    examples = read_glue('sst2', str(tmp_path), 'dev')
    assert examples.labels.tolist() == [1, 0] and examples.ids == ['7', '5']
    # Rows that are left out are counted, so that ids stay the test file's row numbers.
    put(tmp_path, 'SST-2/test.jsonl', '{}\n{"sentence": "A"}\n{"sentence": "B"}\n')
    assert read_glue('sst2', str(tmp_path), 'test').ids == ['1', '2']


@pytest.mark.parametrize(('task', 'names', 'labels'), [
    ('mnli', ['entailment', 'neutral', 'contradiction'], [1, 2]),
    ('mnli', ['contradiction', 'entailment', 'neutral'], [0, 1]),
    ('mnli', ['Neutral', 'Contradiction', 'Entailment'], [2, 0]),
    ('mnli', ['0', '1', '2'], [1, 2]),
    ('rte', ['not_entailment', 'entailment'], [1, 0]),
    ('wnli', ['not_entailment', 'entailment'], [0, 1]),
    ('mrpc', ['equivalent', 'not_equivalent'], [1, 0]),
    ('sst2', ['0', '1'], [0, 1]),
])
def test_a_file_that_names_its_labels_tells_what_its_numbers_mean(
        task, names, labels, tmp_path, capsys):
    pytest.importorskip('pyarrow')
    fields = GLUE_TASKS[task].fields or GLUE_TASKS[task].texts
    path = parquet(tmp_path / 'a.parquet', {'label': {'_type': 'ClassLabel', 'names': names}},
                   label=[0, 1], **{field: ['A', 'B'] for field in fields})
    assert read_glue(task, path, 'dev').labels.tolist() == labels
    assert capsys.readouterr().out == ''


def test_names_of_labels_that_the_task_does_not_know_are_said(tmp_path, capsys):
    pytest.importorskip('pyarrow')
    path = parquet(tmp_path / 'a.parquet', {'label': {'_type': 'ClassLabel', 'names': ['+', '-']}},
                   label=[0, 1], sentence=['A', 'B'])
    assert read_glue('sst2', path, 'dev').labels.tolist() == [0, 1]
    assert f'note: {path} calls its labels +, -: their numbers are read as 0, 1' in (
        capsys.readouterr().out)


def test_the_place_of_every_row_that_was_left_out_is_said(capsys):
    faults = [f'line {number}: it has no label' for number in range(2, 17)]
    check_malformed('a.csv', 1985, faults, 0.01)
    *listed, rest = capsys.readouterr().err.splitlines()
    assert listed == [f'a.csv, {fault}; left out' for fault in faults[:3]]
    assert rest == ('a.csv: 15 of 2000 rows left out as malformed; the others: '
                    + ', '.join(f'line {number}' for number in range(5, 17)))
    check_malformed('a.csv', 10**5, [f'line {i}: x' for i in range(500)], 0.01)
    assert capsys.readouterr().err.endswith('line 101, line 102 and 397 further\n')


@pytest.mark.parametrize('num_bad, num_good, limit, passes', [
    (1, 3, 0.01, True),  # one is always accepted, unless the limit is 0
    (2, 100, 0.01, False), (2, 198, 0.01, True), (3, 197, 0.01, False), (10, 10, 0.5, True),
    (1, 100, 0.0, False),
    (1, 0, 0.01, False),  # no good row is left
])
def test_limit_of_malformed_rows(tmp_path, capsys, num_bad, num_good, limit, passes):
    rows = [f'{1000 + i}\tA\tB\t\n' for i in range(num_bad)] + [
        f'{i}\tA\tB\tentailment\n' for i in range(num_good)]
    path = put(tmp_path, 'RTE/train.tsv', RTE + ''.join(rows))
    if not passes:
        with pytest.raises(InputError, match=(
                f'^{path}: {num_bad} of {len(rows)} rows are malformed .* line 2: its label is')):
            read_glue('rte', str(tmp_path), 'train', max_malformed=limit)
        return
    assert len(read_glue('rte', str(tmp_path), 'train', max_malformed=limit)) == num_good
    listed = capsys.readouterr().err.splitlines()
    assert listed[0] == f'{path}, line 2: its label is empty; left out'
    assert len(listed) == min(num_bad, 3) + (num_bad > 3)


@pytest.mark.parametrize('task, file, content, message', [
    ('rte', 'dev.tsv', RTE + '0\tA\tB\tentailment\n1\tA\tB\tneutral\n',
     ", line 3: unknown label 'neutral'; known are entailment, not_entailment"),
    ('rte', 'dev.jsonl', '{"sentence1": "A", "sentence2": "B", "label": ["entailment"]}\n',
     ', line 1: a list of labels'),
    ('rte', 'dev.tsv', RTE + '0\tA\tB\tentailment\n1\tA\tB\tentailment\n0\tA\tB\tentailment\n',
     ", line 4: id '0' stands in line 2 already"),
    ('rte', 'test.tsv', 'sentence1\tsentence2\nA\tB\n', " has no column 'index'"),
    ('sst2', 'test.jsonl', '{}\n{"sentence": "A"}\n{"sentence": 3}\n{"sentence": "B"}\n',
     ": 2 of 4 rows are malformed .*line 1: no field 'sentence'"),
    *(('stsb', 'dev.tsv', f'{STSB}0\tg\tf\t2012\t7\tnone\tnone\tOne\tTwo\t{score}\n',
       f", line 2: score '{score}' is not a number from 0 to 5")
      for score in ('five', '5.001', '-0.1', 'nan', 'inf')),
])
def test_faulty_files(tmp_path, task, file, content, message):
    path = put(tmp_path, f'{GLUE_TASKS[task].folder}/{file}', content)
    with pytest.raises(InputError, match=f'^{path}{message}') as error:
        read_glue(task, str(tmp_path), file.partition('.')[0])
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('task, split, message', [
    ('cola', 'dev', 'no folder {dir}/CoLA'),
    ('rte', 'test', '{dir}/RTE has none of test.tsv, test.jsonl'),
    ('rte', 'dev', '{dir}/RTE has no dev.tsv but several that could be: dev.a.tsv, dev.b.tsv.gz'),
])
def test_a_missing_or_ambiguous_file_is_refused(tmp_path, task, split, message):
    put(tmp_path, 'RTE/dev.a.tsv', RTE)
    put(tmp_path, 'RTE/dev.b.tsv.gz', RTE)
    with pytest.raises(InputError, match=message.format(dir=tmp_path)):
        read_glue(task, str(tmp_path), split)
    assert split == 'dev' or read_glue(task, str(tmp_path), split, required=False) is None


def test_tensorflow_datasets():
    """It has another order of MNLI's labels, and its records are shuffled."""
    records = [
        {'hypothesis': f'H\u00e9{i}'.encode(), 'idx': np.int32(i), 'label': np.int64(label),
         'premise': f'P{i}'.encode()} for i, label in ((1, 2), (0, 0), (2, 1))]
    examples = from_tfds('mnli', 'dev_matched', records)
    assert examples.texts == [['P0', 'P1', 'P2'], ['H\u00e90', 'H\u00e91', 'H\u00e92']]
    assert [GLUE_TASKS['mnli'].labels[i] for i in examples.labels] == [
        'entailment', 'contradiction', 'neutral']
    assert examples.labels.dtype == np.int32 and examples.ids == ['0', '1', '2']
    assert from_tfds('mnli', 'test_matched', records).labels is None
    pair = {'sentence1': b'A', 'sentence2': b'B', 'label': np.float32(2.5), 'idx': np.int32(0)}
    labels = from_tfds('stsb', 'train', [pair]).labels
    assert labels.tolist() == [2.5] and labels.dtype == np.float32


def test_tensorflow_datasets_has_these_fields_and_labels():
    pytest.importorskip('tensorflow_datasets', reason='compared with tensorflow-datasets')
    from tensorflow_datasets.text.glue import Glue

    configs = {config.name: config for config in Glue.BUILDER_CONFIGS}
    # Its names of labels that are 0 and 1 in the files.
    meanings = {
        'cola': ['unacceptable', 'acceptable'], 'sst2': ['negative', 'positive'],
        'mrpc': ['not_equivalent', 'equivalent'], 'qqp': ['not_duplicate', 'duplicate'],
        'wnli': ['not_entailment', 'entailment'],
    }
    for name, task in GLUE_TASKS.items():
        assert set(configs[name].text_features) == set(task.fields or task.texts)
        want = meanings.get(name) or list(task.tfds_labels or task.labels) or None
        assert configs[name].label_classes == want


# Numbers of rows and labels as the benchmark publishes them (QQP: those of the part in the test
# data, whose first row is malformed).
@pytest.mark.parametrize('task, split, num, counts', [
    ('cola', 'train', 8551, [2528, 6023]),
    ('qqp', 'train', 23496, [14749, 8747]),
    ('mnli', 'dev_matched', 9815, [3213, 3479, 3123]),
    ('ax', 'test', 1104, None),
])
def test_real_files(shared_data, task, split, num, counts):
    examples = read_glue(task, str(shared_data / 'glue'), split)
    assert len(examples) == num
    if counts is None:
        assert examples.labels is None
        assert examples.ids == [str(i) for i in range(num)]  # as a submission wants them
    else:
        assert np.bincount(examples.labels).tolist() == counts


@pytest.mark.parametrize('task, split', [
    ('sst2', 'train'), ('qnli', 'dev'), ('stsb', 'train'), ('mrpc', 'train')])
def test_real_files_as_the_csv_module_reads_them(shared_data, task, split):
    known = GLUE_TASKS[task]
    file = shared_data / 'glue' / known.folder / f'{split}.tsv.gz'
    with gzip.open(file, 'rt', encoding='utf-8-sig', newline='') as lines:
        rows = list(csv.DictReader(lines, delimiter='\t', quoting=csv.QUOTE_NONE))
    examples = read_glue(task, str(shared_data / 'glue'), split)
    assert examples.texts == [[row[name] for row in rows] for name in known.texts]
    labels = [row[known.label] for row in rows]
    if known.labels:
        assert [known.labels[i] for i in examples.labels] == labels
    else:
        assert examples.labels.tolist() == np.array(labels, np.float32).tolist()
        assert examples.labels.min() == 0 and examples.labels.max() == 5
