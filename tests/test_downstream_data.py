"""Opening a task's data: by name it is that of the original files, and faults are told at once."""

import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from bert_jax.config import default_config
from bert_jax.downstream import open_downstream
from bert_jax.errors import InputError
from bert_jax.text.load import load_tokenizer

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


@pytest.fixture
def tokenizer(tmp_path):
    path = tmp_path / 'vocab.txt'
    path.write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '.', '?', *WORDS]))
    return load_tokenizer(path, lowercase=True)


def encode_by(tokenizer):
    def encode(texts):
        ids = [tokenizer.encode(text) for text in texts]
        return np.concatenate(ids).astype(np.int32), np.array([len(i) for i in ids])
    return encode


def prepare(tfds, name, folder, files):
    """Has tensorflow-datasets' own builder make the data set from these files."""
    with mock.patch.object(
        tfds.download.DownloadManager, 'download_and_extract', lambda self, urls: files
    ):
        tfds.builder(name, data_dir=folder, try_gcs=False).download_and_prepare()


def config_of(task, source, tmp_path, **data):
    config = default_config()
    config.task, config.data.source, config.data.tfds_dir = task, source, str(tmp_path / 'tfds')
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
def test_squad(version, tfds, tokenizer, tmp_path):
    number = {'v1': '1.1', 'v2': '2.0'}[version]
    files = {part: tmp_path / f'{part}-v{number}.json' for part in ('train', 'dev')}
    for path in files.values():
        squad_file(path, version)
    prepare(tfds, f'squad/v{number}', str(tmp_path / 'tfds'), files)
    args = tokenizer, encode_by(tokenizer)
    from_files = open_downstream(config_of(f'squad_{version}', str(tmp_path), tmp_path), *args)
    by_name = open_downstream(config_of(f'squad_{version}', 'tfds:squad', tmp_path), *args)
    assert contents(by_name.train) == contents(from_files.train)
    assert len(by_name.train) == {'v1': 2, 'v2': 3}[version]
    longest = by_name.evaluated[0].units.sequences
    outputs = {name: np.zeros(len(longest.ids), np.float32)
               for name in ('start_logits', 'end_logits')}
    assert by_name.evaluated[0].score(outputs).keys() == from_files.evaluated[0].score(
        outputs).keys()
    own = config_of(f'squad_{version}', 'tfds:squad', tmp_path, eval_source=str(files['dev']))
    assert contents(open_downstream(own, *args).evaluated[0].units) == contents(
        from_files.evaluated[0].units)


def test_conll(tfds, tokenizer, tmp_path):
    folder = tmp_path / 'conll'
    folder.mkdir()
    for name in ('train', 'valid', 'test'):
        (folder / f'{name}.txt').write_text(TAGGED)
    prepare(tfds, 'conll2003', str(tmp_path / 'tfds'), Path(folder))
    args = tokenizer, encode_by(tokenizer)
    from_files = open_downstream(config_of('conll', str(folder), tmp_path), *args)
    by_name = open_downstream(config_of('conll', 'tfds:conll2003', tmp_path), *args)
    assert by_name.labels == ('O', 'B-LOC', 'I-LOC', 'B-PER', 'I-PER') == from_files.labels
    for ours, theirs in zip(
        (by_name.train, *(s.units for s in by_name.evaluated)),
        (from_files.train, *(s.units for s in from_files.evaluated)), strict=True,
    ):
        assert contents(ours) == contents(theirs)
    with pytest.raises(InputError, match='has lost the documents'):
        open_downstream(
            config_of('conll', 'tfds:conll2003', tmp_path, document_context=True), *args)


def test_conll_is_scored_on_the_test_split_where_it_is(tokenizer, tmp_path):
    for name in ('eng.train', 'eng.testa'):
        (tmp_path / name).write_text(TAGGED)
    args = tokenizer, encode_by(tokenizer)
    without = open_downstream(config_of('conll', str(tmp_path), tmp_path), *args)
    assert [s.name for s in without.evaluated] == ['']
    (tmp_path / 'eng.testb').write_text(TAGGED.replace('john', 'antwerp'))
    downstream = open_downstream(config_of('conll', str(tmp_path), tmp_path), *args)
    assert [s.name for s in downstream.evaluated] == ['', 'test_']
    test = downstream.evaluated[1]
    right = np.eye(5, dtype=np.float32)[
        np.where(test.units.tokens['token_weights'] > 0, test.units.tokens['token_labels'], 0)]
    assert test.score({'logits': right})['f1'] == 1
    test.write({'logits': right}, tmp_path)
    assert (tmp_path / 'test_predictions.txt').read_text().startswith('antwerp B-PER B-PER')


def test_a_file_without_answers_is_refused_before_training(tokenizer, tmp_path):
    squad_file(tmp_path / 'train-v1.1.json', 'v1')
    root = json.loads((tmp_path / 'train-v1.1.json').read_text())
    for qa in root['data'][0]['paragraphs'][0]['qas']:
        del qa['answers']
    (tmp_path / 'dev-v1.1.json').write_text(json.dumps(root))
    config = config_of('squad_v1', str(tmp_path), tmp_path)
    with pytest.raises(InputError, match=r"dev-v1.1.json: question b has no field 'answers'"):
        open_downstream(config, tokenizer, encode_by(tokenizer))


def test_no_answer_to_anything_is_a_threshold_too(tokenizer, tmp_path):
    """All texts are wrong and all odds are for them: best is to answer nothing."""
    for part in ('train', 'dev'):
        squad_file(tmp_path / f'{part}-v2.0.json', 'v2')
    downstream = open_downstream(
        config_of('squad_v2', str(tmp_path), tmp_path), tokenizer, encode_by(tokenizer))
    dev = downstream.evaluated[0]
    offsets = dev.units.sequences.offsets
    start = np.zeros(int(offsets[-1]), np.float32)
    start[offsets[:-1] + dev.units.sequences.first_lengths + 2] = 5.0  # 'The', never an answer
    outputs = {'start_logits': start, 'end_logits': start}
    scores = dev.score(outputs)
    assert scores['null_threshold'] < 0 and scores['f1'] == scores['best_f1'] == 100 / 3
    dev.write(outputs, tmp_path)
    assert set(json.loads((tmp_path / 'predictions.json').read_text()).values()) == {''}


def test_mnli_needs_the_matched_dev_set(tokenizer, tmp_path):
    columns = ['index', *'abcdefg', 'sentence1', 'sentence2', *'hijkl', 'gold_label']
    row = ['0', *'abcdefg', 'the leader', 'john smith', *'hijkl', 'neutral']
    (tmp_path / 'MNLI').mkdir()
    for name in ('train', 'dev_mismatched'):
        (tmp_path / 'MNLI' / f'{name}.tsv').write_text(
            '\t'.join(columns) + '\n' + '\t'.join(row) + '\n')
    with pytest.raises(InputError, match='no dev_matched split of mnli'):
        open_downstream(
            config_of('mnli', str(tmp_path), tmp_path), tokenizer, encode_by(tokenizer))
