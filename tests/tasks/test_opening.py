"""Opening a task's data: by name it is that of the original files, and faults are told at once."""

import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from bert_jax.config import default_config
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.labelled import ScoredModel
from bert_jax.tasks.opening import open_task

WORDS = ['the', 'leader', 'was', 'john', 'smith', 'born', 'in', 'antwerp', 'who', 'when']
TAGGED = """-DOCSTART- -X- -X- O

john NNP B-NP B-PER
smith NNP I-NP I-PER
was VBD B-VP O
born VBN I-VP O
in IN B-PP O
antwerp NNP B-NP B-LOC

the DT B-NP O
leader NN I-NP O

"""


@pytest.fixture(scope='module')
def tfds():
    return pytest.importorskip('tensorflow_datasets')


@pytest.fixture(autouse=True)
def vocabulary(tmp_path):
    (tmp_path / 'vocab.txt').write_text(
        '\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '.', '?', *WORDS]))


def opened(config):
    return open_task(config).data


def prepare(tfds, name, folder, files):
    """Has tensorflow-datasets' own builder make the data set from these files."""
    with mock.patch.object(
        tfds.download.DownloadManager, 'download_and_extract', lambda self, urls: files
    ):
        tfds.builder(name, data_dir=folder, try_gcs=False).download_and_prepare()


def config_of(task, source, tmp_path, **data):
    config = default_config(task)
    config.data.source, config.data.tfds_dir = source, str(tmp_path / 'tfds')
    config.data.vocab_file, config.data.lowercase = str(tmp_path / 'vocab.txt'), True
    config.data.max_seq_length = 32
    config.data.update(data)
    return config


def contents(units):
    """What each unit is, without regard to order."""
    sequences, found = units.sequences, []
    for i, (start, end) in enumerate(
        zip(sequences.offsets[:-1], sequences.offsets[1:], strict=True)
    ):
        parts = [sequences.ids[start:end]]
        parts += [values[i : i + 1] for values in units.positions.values()]
        parts += [values[start:end] for values in units.tokens.values()]
        found.append(tuple(np.concatenate(parts).tolist()))
    return sorted(found)


def squad_file(path, version):
    qas = [
        {'id': name, 'question': question, 'answers': [{'text': text, 'answer_start': start}]}
        for name, question, text, start in (
            ('b', 'Who was the leader?', 'John Smith', 15), ('a', 'Born when?', 'Antwerp', 46))
    ]
    if version == 'v2':
        qas[0]['is_impossible'] = qas[1]['is_impossible'] = False
        qas.append({'id': 'c', 'question': 'When?', 'answers': [], 'is_impossible': True})
    paragraphs = [{'context': 'The leader was John Smith. John Smith was born in Antwerp.',
                   'qas': qas}]
    qas[1]['answers'][0]['answer_start'] = paragraphs[0]['context'].index('Antwerp')
    path.write_text(json.dumps({'version': version, 'data': [
        {'title': 'Any', 'paragraphs': paragraphs}]}))


@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_squad(version, tfds, tmp_path):
    number = {'v1': '1.1', 'v2': '2.0'}[version]
    files = {part: tmp_path / f'{part}-v{number}.json' for part in ('train', 'dev')}
    for path in files.values():
        squad_file(path, version)
    prepare(tfds, f'squad/v{number}', str(tmp_path / 'tfds'), files)
    from_files = opened(config_of(f'squad_{version}', str(tmp_path), tmp_path))
    by_name = opened(config_of(f'squad_{version}', 'tfds:squad', tmp_path))
    assert contents(by_name.train) == contents(from_files.train)
    assert len(by_name.train) == {'v1': 2, 'v2': 3}[version]
    longest = by_name.evaluated[0].units.sequences
    outputs = {name: np.zeros(len(longest.ids), np.float32)
               for name in ('start_logits', 'end_logits')}
    assert by_name.evaluated[0].score(outputs).keys() == from_files.evaluated[0].score(
        outputs).keys()
    own = config_of(f'squad_{version}', 'tfds:squad', tmp_path, eval_source=str(files['dev']))
    assert contents(opened(own).evaluated[0].units) == contents(
        from_files.evaluated[0].units)


def test_conll(tfds, tmp_path):
    folder = tmp_path / 'conll'
    folder.mkdir()
    for name in ('train', 'valid', 'test'):
        (folder / f'{name}.txt').write_text(TAGGED)
    prepare(tfds, 'conll2003', str(tmp_path / 'tfds'), Path(folder))
    from_files = opened(config_of('conll', str(folder), tmp_path))
    by_name = opened(config_of('conll', 'tfds:conll2003', tmp_path))
    assert by_name.labels == ('O', 'B-LOC', 'I-LOC', 'B-PER', 'I-PER') == from_files.labels
    for ours, theirs in zip(
        (by_name.train, *(s.units for s in by_name.evaluated)),
        (from_files.train, *(s.units for s in from_files.evaluated)), strict=True,
    ):
        assert contents(ours) == contents(theirs)
    with pytest.raises(InputError, match='has lost the documents'):
        config = config_of('conll', 'tfds:conll2003', tmp_path)
        config.conll.document_context = True
        opened(config)


def test_conll_is_scored_on_the_test_split_where_it_is(tmp_path):
    for name in ('eng.train', 'eng.testa'):
        (tmp_path / name).write_text(TAGGED)
    without = opened(config_of('conll', str(tmp_path), tmp_path))
    assert [s.name for s in without.evaluated] == ['']
    (tmp_path / 'eng.testb').write_text(TAGGED.replace('john', 'antwerp'))
    downstream = opened(config_of('conll', str(tmp_path), tmp_path))
    assert [s.name for s in downstream.evaluated] == ['', 'test_']
    test = downstream.evaluated[1]
    right = np.eye(5, dtype=np.float32)[
        np.where(test.units.tokens['token_weights'] > 0, test.units.tokens['token_labels'], 0)]
    assert test.score({'logits': right})['f1'] == 1
    test.write({'logits': right}, tmp_path)
    cells = [line.split(' ') for line in TAGGED.replace('john', 'antwerp').split('\n')[2:]]
    assert (tmp_path / 'test_predictions.txt').read_text() == '\n'.join(
        ' '.join([x[0], x[-1], x[-1]] if x[0] else []) for x in cells)


def test_a_file_without_answers_is_refused_before_training(tmp_path):
    squad_file(tmp_path / 'train-v1.1.json', 'v1')
    root = json.loads((tmp_path / 'train-v1.1.json').read_text())
    for qa in root['data'][0]['paragraphs'][0]['qas']:
        del qa['answers']
    (tmp_path / 'dev-v1.1.json').write_text(json.dumps(root))
    config = config_of('squad_v1', str(tmp_path), tmp_path)
    with pytest.raises(InputError, match=r'dev-v1.1.json: .*answers is missing'):
        opened(config)


def test_no_answer_to_anything_is_a_threshold_too(tmp_path):
    """All texts are wrong and all odds are for them: best is to answer nothing."""
    for part in ('train', 'dev'):
        squad_file(tmp_path / f'{part}-v2.0.json', 'v2')
    downstream = opened(config_of('squad_v2', str(tmp_path), tmp_path))
    dev = downstream.evaluated[0]
    offsets = dev.units.sequences.offsets
    start = np.zeros(int(offsets[-1]), np.float32)
    start[offsets[:-1] + dev.units.sequences.first_lengths + 2] = 5.0  # 'The', never an answer
    outputs = {'start_logits': start, 'end_logits': start}
    scores = dev.score(outputs)
    assert scores['null_threshold'] < 0 and scores['f1'] == scores['best_f1'] == 100 / 3
    dev.write(outputs, tmp_path)
    assert set(json.loads((tmp_path / 'predictions.json').read_text()).values()) == {''}


def test_mnli_needs_the_matched_dev_set(tmp_path):
    columns = ['index', *'abcdefg', 'sentence1', 'sentence2', *'hijkl', 'gold_label']
    row = ['0', *'abcdefg', 'the leader', 'john smith', *'hijkl', 'neutral']
    (tmp_path / 'MNLI').mkdir()
    for name in ('train', 'dev_mismatched'):
        (tmp_path / 'MNLI' / f'{name}.tsv').write_text(
            '\t'.join(columns) + '\n' + '\t'.join(row) + '\n')
    with pytest.raises(InputError, match='no dev_matched split of mnli'):
        opened(config_of('mnli', str(tmp_path), tmp_path))


def write(path, text):
    path.write_text(text)
    return str(path)


CSV = 'text,label\n' + ''.join(
    f'"{WORDS[i % 10]}, {WORDS[i % 7]}",{("good", "bad", "so so")[i % 3]}\n' for i in range(60))


def test_your_own_labels_are_learnt_and_a_share_is_held_out(tmp_path, capsys):
    source = write(tmp_path / 'own.csv', CSV)
    config = config_of('classification', source, tmp_path, held_out=0.25)
    data = opened(config)
    assert data.labels == ('bad', 'good', 'so so') and data.head == 'classification'
    assert data.metric == 'accuracy' and data.objective == {'num_outputs': 3}
    assert len(data.train) + len(data.evaluated[0].units) == 60
    said = capsys.readouterr().out
    assert 'labels: bad' in said and 'are held out' in said and 'are cut at' in said
    overlap = set(contents(data.train)) & set(contents(data.evaluated[0].units))
    assert not overlap, 'equal texts on both sides'


@pytest.mark.parametrize('given, weights', [
    ('', ()), ('balanced', (2 / 3, 2.0)), ('bad=3, good=0.5', (3.0, 0.5)), ('good=2', (1.0, 2.0)),
    ('best=2', 'labels are bad, good'), ('good', 'LABEL=NUMBER'), ('good=-1', 'LABEL=NUMBER'),
])
def test_class_weights(tmp_path, given, weights):
    rows = [f'{WORDS[i]},{"good" if i == 3 else "bad"}' for i in range(4)]
    source = write(tmp_path / 'own.csv', '\n'.join(['text,label', *rows, '']))
    config = config_of('classification', source, tmp_path, eval_source=source)
    config.classification.class_weights = given
    if isinstance(weights, str):
        with pytest.raises(InputError, match=weights):
            opened(config)
    else:
        assert opened(config).objective.get('class_weights', ()) == pytest.approx(weights)


def test_long_texts_are_scored_by_their_windows(tmp_path):
    rows = 'text,label\njohn,good\n' + ' '.join(WORDS) + ',bad\n'
    source = write(tmp_path / 'own.csv', rows)
    config = config_of('classification', source, tmp_path, eval_source=source, max_seq_length=8)
    config.classification.windows = 'max'
    data = opened(config)
    assert data.inference == {'windows': 'max'} and len(data.train) == 2
    dev = data.evaluated[0]
    assert len(dev.units) == 4  # the second is ten words, six a window
    logits = np.array([[0, 1], [0, 1], [5, 0], [0, 1]], np.float32)  # one is sure of 'bad'
    assert data.labels == ('bad', 'good') and dev.score({'logits': logits})['accuracy'] == 1
    dev.write({'logits': logits}, tmp_path)
    written = (tmp_path / 'dev_predictions.tsv').read_text()
    assert written == 'index\tprediction\n0\tgood\n1\tbad\n'
    config.classification.windows = 'last'
    with pytest.raises(InputError, match="classification.windows='last' is unknown"):
        opened(config)


def test_a_label_met_in_evaluation_alone_is_an_error_that_stops_nothing(tmp_path, capsys):
    source = write(tmp_path / 'train.csv', CSV)
    dev = write(tmp_path / 'dev.csv', 'text,label\nthe leader,good\njohn,awful\n')
    data = opened(config_of('classification', source, tmp_path, eval_source=dev))
    right = data.evaluated[0].score({'logits': np.eye(3, dtype=np.float32)[[1, 0]]})
    assert right['accuracy'] == 0.5
    assert 'awful occur only in evaluation' in capsys.readouterr().out


def test_several_labels_that_only_evaluation_has_count_against_the_model(tmp_path):
    source = write(tmp_path / 'train.csv', 'text,label\nthe leader,a\njohn,b\n')
    dev = write(tmp_path / 'dev.csv', 'text,label\nthe leader,new\njohn,"a,other"\n')
    config = config_of('classification', source, tmp_path, eval_source=dev)
    config.classification.multi_label = True
    logits = np.array([[-1, -1], [1, -1]], np.float32)  # nothing, and 'a'
    scores = opened(config).evaluated[0].score({'logits': logits})
    assert scores.pop('loss') == pytest.approx(
        np.mean(np.log1p(np.exp([-1, -1, -1, -1]))))  # of the labels that the model has
    assert scores == {'accuracy': 0, 'micro_f1': 2 / 4, 'macro_f1': 1 / 4}


@pytest.mark.parametrize('none', [[], '', None])
@pytest.mark.parametrize('label', [['a', 'b'], 'a,b', '["a", "b"]'])
def test_several_labels_an_example(label, none, tmp_path):
    rows = [{'body': 'the leader', 'kinds': label}, {'body': 'john', 'kinds': 'b'},
            {'body': 'smith', 'kinds': none}]
    source = write(tmp_path / 'own.jsonl', '\n'.join(map(json.dumps, rows)))
    config = config_of(
        'classification', source, tmp_path, eval_source=source, text='body', label='kinds')
    config.classification.multi_label = True
    data = opened(config)
    assert data.head == 'multi_label' and data.labels == ('a', 'b')
    marks = np.array([[1, 1], [0, 1], [0, 0]], np.float32)
    np.testing.assert_array_equal(data.train.labels['labels'], marks)
    scores = data.evaluated[0].score({'logits': marks - 0.5})
    assert scores == {'micro_f1': 1.0, 'macro_f1': 1.0, 'accuracy': 1.0,
                      'loss': pytest.approx(np.log1p(np.exp(-0.5)))}
    data.evaluated[0].write({'logits': marks - 0.5}, tmp_path)
    assert (tmp_path / 'dev_predictions.tsv').read_text() == (
        'index\tprediction\n0\ta,b\n1\tb\n2\t\n')


def test_regression_on_pairs(tmp_path):
    source = write(tmp_path / 'own.tsv', 'a\tb\tgrade\n' + ''.join(
        f'the\t{word}\t{i / 4 - 1}\n' for i, word in enumerate(WORDS)))
    data = opened(config_of('regression', source, tmp_path, eval_source=source, text='a',
                            text_pair='b', label='grade'))
    assert data.head == 'regression' and data.metric == 'spearman'
    labels = data.train.labels['labels']
    assert labels.tolist() == [i / 4 - 1 for i in range(10)]
    assert data.evaluated[0].score({'logits': labels[:, None]})['pearson'] > 0.999
    assert all(n == 2 for n in data.train.sequences.first_lengths - 1)


@pytest.mark.parametrize('as_file', [False, True])
def test_tags_that_are_numbers_get_their_names(as_file, tmp_path, capsys):
    rows = [{'text': ['john', 'was'], 'label': [1, 0]},
            {'text': ['the', 'leader'], 'label': [0, 0]}]
    source = write(tmp_path / 'own.jsonl', '\n'.join(map(json.dumps, rows)))
    names = write(tmp_path / 'names', 'O\nB-PER\nI-PER\n') if as_file else 'O,B-PER,I-PER'
    config = config_of('tagging', source, tmp_path, eval_source=source)
    assert opened(config).metric == 'accuracy'
    assert 'no entities can be made: name them with' in capsys.readouterr().out
    config.data.label_names = str(names)
    data = opened(config)
    assert data.metric == 'f1' and data.labels == ('O', 'B-PER', 'I-PER')
    config.data.label_names, config.data.max_malformed = 'O', 0.0
    with pytest.raises(InputError, match='tag 1 has no name in config.data.label_names'):
        opened(config)


POS = '\n'.join(f'{a} DT\n{b} NN\n' for a, b in zip(WORDS, WORDS[1:]))


@pytest.mark.parametrize(('text', 'labels', 'metric'), [
    (POS, ('DT', 'NN'), 'accuracy'),
    ('john S-PER\nwas O\n\njohn B-PER\nsmith E-PER\n', ('O', 'B-PER', 'I-PER'), 'f1'),
    ('john I-PER\nsmith B-PER\n\nwas O\n', ('O', 'B-PER', 'I-PER'), 'f1'),
])
def test_your_own_tags(text, labels, metric, tmp_path):
    source = write(tmp_path / 'own.txt', text)
    data = opened(config_of('tagging', source, tmp_path, eval_source=source))
    assert data.labels == labels and data.metric == metric
    units = data.evaluated[0].units
    right = np.eye(len(labels), dtype=np.float32)[units.tokens['token_labels']]
    assert data.evaluated[0].score({'logits': right})[metric] == 1


def test_tags_from_json_lines_and_unseen_ones(tmp_path, capsys):
    rows = [{'tokens': ['the', 'leader'], 'tags': [0, 1]}, {'tokens': ['john'], 'tags': [1]}]
    source = write(tmp_path / 'own.jsonl', '\n'.join(map(json.dumps, rows)))
    dev = write(tmp_path / 'dev.jsonl', json.dumps({'tokens': ['the', 'john'], 'tags': [0, 7]}))
    data = opened(config_of(
        'tagging', source, tmp_path, eval_source=dev, text='tokens', label='tags'))
    assert data.labels == ('0', '1')
    size = len(data.evaluated[0].units.sequences.ids)
    scores = data.evaluated[0].score({'logits': np.tile([[1.0, 0.0]], (size, 1))})
    assert scores['accuracy'] == 0.5
    assert '7 occur only in evaluation' in capsys.readouterr().out


def test_your_own_choices(tmp_path):
    rows = [f'{word},{WORDS[i - 1]},{WORDS[i - 2]},{"ab"[i % 2]}' for i, word in enumerate(WORDS)]
    source = write(tmp_path / 'own.csv', '\n'.join(['q,a,b,y', *rows]))
    config = config_of(
        'multiple_choice', source, tmp_path, text='q', choices='a, b', label='y', held_out=0.3)
    data = opened(config)
    assert data.head == 'multiple_choice' and data.objective == {'num_outputs': 2}
    dev = data.evaluated[0]
    assert len(data.train) + len(dev.units) == 10 and dev.units.choices == 2
    right = np.eye(2)[dev.units.labels['labels']]
    assert dev.score({'logits': right}) == {
        'accuracy': 1, 'loss': pytest.approx(np.log1p(np.exp(-1)))}
    only = open_task(config, ScoredModel()).data
    assert only.train is None and only.evaluated[0].units.digest() == dev.units.digest()
    config.data.eval_source = config.data.source
    only = open_task(config, ScoredModel()).data
    assert len(only.evaluated[0].units) == 10
    config.data.eval_source = ''
    config.data.choices = ''
    with pytest.raises(InputError, match='name the columns of the choices'):
        opened(config)


def test_boolq(tmp_path):
    rows = [{'question': 'was the leader john', 'passage': 'john smith.', 'idx': i, 'label': i > 0}
            for i in range(2)]
    for split in ('train', 'val'):
        write(tmp_path / f'{split}.jsonl', '\n'.join(map(json.dumps, rows)))
    write(tmp_path / 'test.jsonl', json.dumps({**rows[0], 'label': None}))
    data = opened(config_of('boolq', str(tmp_path), tmp_path))
    assert data.train.labels['labels'].tolist() == [0, 1] and data.labels == ('false', 'true')
    assert [len(s.units) for s in (*data.evaluated, *data.predicted)] == [2, 1]
    data.predicted[0].write({'logits': np.array([[0.0, 1.0]])}, tmp_path)
    assert (tmp_path / 'test_predictions.tsv').read_text() == 'index\tprediction\n0\ttrue\n'


@pytest.mark.parametrize('task', ['mrpc', 'conll', 'boolq'])
def test_an_evaluation_file_is_refused_where_the_benchmark_has_one(task, tmp_path):
    with pytest.raises(InputError, match='config.data.eval_source='):
        opened(config_of(task, str(tmp_path), tmp_path, eval_source='mine.tsv'))


@pytest.mark.parametrize(('text', 'said'), [
    ('text,label\nthe,a\njohn,a\n', 'has one label, a'),
    ('body,label\nthe,a\njohn,b\n', "no column 'text'"),
    ('text,label\nthe,a\njohn,b\n', 'would leave'),
])
def test_own_files_that_cannot_be_learnt_from(text, said, tmp_path):
    source = write(tmp_path / 'own.csv', text)
    with pytest.raises(InputError, match=said):
        opened(config_of('classification', source, tmp_path, held_out=0.0))
