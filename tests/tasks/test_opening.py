"""Benchmarks: names and files give the same; what is trained on is not scored unasked."""

import dataclasses
from unittest import mock

import numpy as np
import pytest

from bert_jax.heads.classification import Classification
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.handles import ScoredModel
from bert_jax.tasks.opening import SHIPPED, own_file
from tests.opening import open_task
from tests.tasks.files import put
from tests.tasks.opened import TAGGED, config_of, opened, parquet

pytestmark = pytest.mark.usefixtures('vocabulary')


def prepare(name, folder, files):
    """Builds the data set from these files with tensorflow-datasets' own builder."""
    tfds = pytest.importorskip('tensorflow_datasets')
    with mock.patch.object(
        tfds.download.DownloadManager, 'download_and_extract', lambda self, urls: files
    ):
        tfds.builder(name, data_dir=folder, try_gcs=False).download_and_prepare()


CONTEXT = 'The leader was John Smith. John Smith was born in Antwerp.'


def squad_question(name, text, answer, **fields):
    answers = [{'text': answer, 'answer_start': CONTEXT.index(answer)}] if answer else []
    return {'id': name, 'question': text, 'answers': answers, **fields}


QUESTIONS = {
    'v1': [squad_question('a', 'Who was the leader?', 'John Smith'),
           squad_question('b', 'Born when?', 'Antwerp')],
    'v2': [squad_question('a', 'Who was the leader?', 'John Smith', is_impossible=False),
           squad_question('b', 'Born when?', 'Antwerp', is_impossible=False),
           squad_question('c', 'When?', '', is_impossible=True)],
}


@dataclasses.dataclass(frozen=True)
class SquadNames:
    """What an edition of SQuAD is called in its files, by tensorflow-datasets and on the hub."""

    number: str
    tfds: str
    hub: str
    hub_folder: str


SQUAD_NAMES = {
    'v1': SquadNames('1.1', 'squad/v1.1', 'hf:datasets/rajpurkar/squad', 'plain_text'),
    'v2': SquadNames('2.0', 'squad/v2.0', 'hf:datasets/rajpurkar/squad_v2', 'squad_v2'),
}


def write_squad(folder, version):
    """Writes the files of both splits in SQuAD's layout; returns their paths by split."""
    content = {'version': version, 'data': [
        {'title': 'Any', 'paragraphs': [{'context': CONTEXT, 'qas': QUESTIONS[version]}]}]}
    number = SQUAD_NAMES[version].number
    return {split: put(folder, f'{split}-v{number}.json', content) for split in ('train', 'dev')}


def write_squad_of_hub(path, version):
    """Writes the questions in the columns of the hub, one a row."""
    questions = QUESTIONS[version]
    answers = [{key: [answer[key] for answer in question['answers']]
                for key in ('text', 'answer_start')} for question in questions]
    return parquet(
        path, id=[question['id'] for question in questions], title=['Any'] * len(questions),
        context=[CONTEXT] * len(questions),
        question=[question['question'] for question in questions], answers=answers)


@pytest.mark.slow
@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_squad_is_the_same_by_name_and_from_files(version, tmp_path):
    files = write_squad(tmp_path, version)
    prepare(SQUAD_NAMES[version].tfds, str(tmp_path / 'tfds'), files)
    task = f'squad_{version}'
    from_files = opened(task, tmp_path, tmp_path)
    by_name = opened(task, 'tfds:squad', tmp_path)
    scored_by_file = opened(task, 'tfds:squad', tmp_path, eval_source=files['dev'])
    assert by_name.identity() == from_files.identity() == scored_by_file.identity()
    assert len(by_name.train) == len(QUESTIONS[version])
    zeros = np.zeros(len(by_name.train.sequences.ids), np.float32)
    outputs = {'start_logits': zeros, 'end_logits': zeros}
    assert by_name.results([outputs]) == from_files.results([outputs])


@pytest.mark.slow
@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_squad_is_the_same_on_the_hub_and_from_files(version, tmp_path, on_hub):
    write_squad(tmp_path, version)
    names = SQUAD_NAMES[version]
    train = f'{names.hub}/{names.hub_folder}/train'
    validation = f'{names.hub}/{names.hub_folder}/validation'
    for split, name in (('train', train), ('validation', validation)):
        on_hub[name] = write_squad_of_hub(tmp_path / f'{split}.parquet', version)
    task = f'squad_{version}'
    identity = opened(task, tmp_path, tmp_path).identity()
    assert opened(task, names.hub, tmp_path).identity() == identity
    assert opened(task, train, tmp_path, eval_source=validation).identity() == identity
    assert opened(task, on_hub[train], tmp_path, eval_source=on_hub[validation]
                  ).identity() == identity
    with pytest.raises(InputError, match='eval_source is empty: name the file'):
        opened(task, train, tmp_path)


def tagged_sentences(units):
    """(id, label) of each token of each sentence, sorted: tfds shuffles sentences."""
    tokens = np.column_stack([units.sequences.ids, units.tokens['token_labels']])
    sentences = np.split(tokens, units.sequences.offsets[1:-1])
    return sorted(sentence.tolist() for sentence in sentences)


def tagged_contents(task):
    """The sentences of the training set, then of the sets that are scored."""
    return [tagged_sentences(task.train), *(tagged_sentences(x.units) for x in task.evaluated)]


@pytest.fixture
def conll_files(tmp_path):
    """A folder with the files of CoNLL-2003, all alike."""
    for name in ('train', 'valid', 'test'):
        put(tmp_path / 'conll', f'{name}.txt', TAGGED)
    return tmp_path / 'conll'


def test_conll_is_the_same_by_name_and_from_files(conll_files, tmp_path):
    prepare('conll2003', str(tmp_path / 'tfds'), conll_files)
    from_files = opened('conll', conll_files, tmp_path)
    by_name = opened('conll', 'tfds:conll2003', tmp_path)
    assert by_name.labels == ('O', 'B-LOC', 'I-LOC', 'B-PER', 'I-PER') == from_files.labels
    assert tagged_contents(by_name) == tagged_contents(from_files)
    with pytest.raises(InputError, match='has lost the documents'):
        opened('conll', 'tfds:conll2003', tmp_path, own={'document_context': True})


def test_conll_is_the_same_on_the_hub_and_from_files(conll_files, tmp_path, on_hub):
    hub = 'hf:datasets/eriktks/conll2003@refs/convert/parquet'
    names = ['O', 'B-PER', 'I-PER', 'B-ORG', 'I-ORG', 'B-LOC', 'I-LOC', 'B-MISC', 'I-MISC']
    recorded = {'ner_tags': {'feature': {'_type': 'ClassLabel', 'names': names}}}
    for split in ('train', 'validation', 'test'):
        on_hub[f'{hub}/conll2003/{split}'] = parquet(
            tmp_path / f'{split}.parquet',
            recorded if split == 'train' else {},  # names may be missing
            tokens=[['john', 'smith', 'was', 'born', 'in', 'antwerp'], ['the', 'leader']],
            ner_tags=[[1, 2, 0, 0, 0, 5], [0, 0]])
    from_files = opened('conll', conll_files, tmp_path)
    assert tagged_contents(opened('conll', hub, tmp_path)) == tagged_contents(from_files)
    with pytest.raises(InputError, match='has lost the documents'):
        opened('conll', hub, tmp_path, own={'document_context': True})


def test_swag_is_the_same_by_name_and_from_files(tmp_path, on_hub):
    columns = {'sent1': ['The leader was john.', 'Smith was born.'], 'sent2': ['He', 'The'],
               **{f'ending{i}': [f'was {i}', f'in {i}'] for i in range(4)}, 'label': [2, 0]}
    hub = 'hf:datasets/allenai/swag'
    for split, file in (('train', 'train'), ('validation', 'val')):
        on_hub[f'{hub}/regular/{split}'] = parquet(
            tmp_path / f'{split}.parquet', **{'video-id': ['a', 'b'], **columns})
        put(tmp_path, f'swag/{file}.csv', [
            ','.join(map(str, row)) for row in (columns, *zip(*columns.values(), strict=True))])
    from_files = opened('swag', tmp_path / 'swag', tmp_path)
    assert opened('swag', hub, tmp_path).identity() == from_files.identity()
    assert opened('swag', f'{hub}/regular/train', tmp_path,
                  eval_source=f'{hub}/regular/validation').identity() == from_files.identity()


def test_conll_is_also_scored_on_the_test_split_if_there_is_one(tmp_path):
    for name in ('eng.train', 'eng.testa'):
        put(tmp_path, name, TAGGED)
    assert [s.name for s in opened('conll', tmp_path, tmp_path).evaluated] == ['']
    put(tmp_path, 'eng.testb', TAGGED.replace('john', 'antwerp'))
    dev, test = opened('conll', tmp_path, tmp_path).evaluated
    assert (dev.name, test.name) == ('', 'test_')
    labels = np.where(
        test.units.tokens['token_weights'] > 0, test.units.tokens['token_labels'], 0)
    scores, files = test.results({'logits': np.eye(5, dtype=np.float32)[labels]})
    assert scores['f1'] == 1
    assert files == {'test_predictions.txt': """\
antwerp B-PER B-PER
smith I-PER I-PER
was O O
born O O
in O O
antwerp B-LOC B-LOC

the O O
leader O O

"""}


def test_glue_scores_both_dev_sets_of_mnli_and_needs_the_matched_one(tmp_path):
    columns = '\t'.join(['index', 'sentence1', 'sentence2', 'gold_label'])
    for name in ('train', 'dev_mismatched'):
        put(tmp_path, f'MNLI/{name}.tsv', [columns, '0\tthe leader\tjohn smith\tneutral'])
    with pytest.raises(InputError, match='MNLI has none of dev_matched.tsv, dev_matched.jsonl'):
        opened('mnli', tmp_path, tmp_path)
    put(tmp_path, 'MNLI/dev_matched.tsv', [columns, '0\tjohn\tsmith\tentailment'])
    put(tmp_path, 'MNLI/test_matched.tsv', ['index\tsentence1\tsentence2', '7\tjohn\tthe'])
    task = opened('mnli', tmp_path, tmp_path)
    assert [s.name for s in task.evaluated] == ['', 'mismatched_']
    neutral = {'logits': np.eye(3)[[2]]}
    assert [s.results(neutral)[0]['accuracy'] for s in task.evaluated] == [0, 1]
    (test,) = task.predicted
    assert test.results(neutral) == (
        {}, {'test_matched_predictions.tsv': 'index\tprediction\n7\tneutral\n'})


def test_guessing_has_the_published_scores_of_the_majority(shared_data, tmp_path):
    """68.4 % of MRPC's dev set are paraphrases (Dolan and Brockett, 2005): an F1 of 81.2."""
    found = opened('mrpc', shared_data / 'glue', tmp_path, vocab_file=str(
        shared_data / 'vocab' / 'bert-base-uncased-vocab.txt')).majority_baseline
    assert {name: round(100 * x, 1) for name, x in found.items()} == {'f1': 81.2, 'accuracy': 68.4}


@pytest.mark.parametrize('task', ['rte', 'conll', 'squad_v1'])
def test_a_training_file_is_not_scored_unless_it_is_the_eval_source(task, tmp_path):
    name = 'train-v1.1.json' if task == 'squad_v1' else 'train.tsv'  # SQuAD's has no rows to spare
    source = put(tmp_path, name, TAGGED)
    with pytest.raises(InputError, match='config.data.eval_source is empty'):
        open_task(config_of(task, source, tmp_path), ScoredModel())


def test_runs_of_the_package_s_tasks_and_heads_keep_no_file():
    assert [own_file(task, Classification) for task in SHIPPED] == [None] * len(SHIPPED)
