"""Opening a task's data: tfds names and files give the same, and faults are reported at once."""

import contextlib
import json
from unittest import mock

import numpy as np
import pytest

from bert_jax.config import default_config
from bert_jax.data import table
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.labelled import ScoredModel
from bert_jax.tasks.opening import open_task
from bert_jax.tasks.own_texts import class_weights
from bert_jax.tasks.sources import held_out
from tests.tasks.files import put

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


@pytest.fixture(autouse=True)
def vocabulary(tmp_path):
    put(tmp_path, 'vocab.txt', '\n'.join(
        ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '.', '?', *WORDS]))


def prepare(name, folder, files):
    """Builds the data set from these files with tensorflow-datasets' own builder."""
    tfds = pytest.importorskip('tensorflow_datasets')
    with mock.patch.object(
        tfds.download.DownloadManager, 'download_and_extract', lambda self, urls: files
    ):
        tfds.builder(name, data_dir=folder, try_gcs=False).download_and_prepare()


def config_of(task, source, tmp_path, own=None, **data):
    """A task's config; `own` sets fields of its section, `data` those of `config.data`.

    `eval_source=True` scores the task on its training data.
    """
    config = default_config(task)
    config.data.source, config.data.tfds_dir = str(source), str(tmp_path / 'tfds')
    config.data.vocab_file, config.data.lowercase = str(tmp_path / 'vocab.txt'), True
    config.data.max_seq_length = 32
    if own:
        config[task].update(own)
    config.data.update(data | ({'eval_source': str(source)} if data.get('eval_source') is True
                               else {}))
    return config


def opened(task, source, tmp_path, **fields):
    return open_task(config_of(task, source, tmp_path, **fields))


@pytest.fixture
def on_hub(monkeypatch):
    """Files of the Hugging Face hub, by name; a test adds them."""
    files: dict[str, str] = {}
    monkeypatch.setattr(table, 'parquet_files', lambda path: [files.get(path, path)])
    return files


@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_squad_is_the_same_by_name_and_from_files(version, tmp_path, on_hub):
    number = {'v1': '1.1', 'v2': '2.0'}[version]
    context = 'The leader was John Smith. John Smith was born in Antwerp.'
    qas = [{'id': name, 'question': question,
            'answers': [{'text': text, 'answer_start': context.index(text)}] if text else []}
           | ({'is_impossible': not text} if version == 'v2' else {})
           for name, question, text in (
               ('a', 'Who was the leader?', 'John Smith'), ('b', 'Born when?', 'Antwerp'),
               ('c', 'When?', ''))[:{'v1': 2, 'v2': 3}[version]]]
    content = {'version': version, 'data': [
        {'title': 'Any', 'paragraphs': [{'context': context, 'qas': qas}]}]}
    files = {part: put(tmp_path, f'{part}-v{number}.json', content) for part in ('train', 'dev')}
    prepare(f'squad/v{number}', str(tmp_path / 'tfds'), files)
    from_files = opened(f'squad_{version}', tmp_path, tmp_path)
    by_name = opened(f'squad_{version}', 'tfds:squad', tmp_path)
    own = opened(f'squad_{version}', 'tfds:squad', tmp_path, eval_source=files['dev'])
    assert by_name.identity() == from_files.identity() == own.identity()
    assert len(by_name.train) == len(qas)
    name, folder = {'v1': ('squad', 'plain_text'), 'v2': ('squad_v2', 'squad_v2')}[version]
    for split in ('train', 'validation'):
        on_hub[f'hf:datasets/rajpurkar/{name}/{folder}/{split}'] = parquet(
            tmp_path / f'{split}.parquet', id=[qa['id'] for qa in qas], title=['Any'] * len(qas),
            context=[context] * len(qas), question=[qa['question'] for qa in qas],
            answers=[{key: [answer[key] for answer in qa['answers']]
                      for key in ('text', 'answer_start')} for qa in qas])
    hub = f'hf:datasets/rajpurkar/{name}'
    for source, scored in ((hub, ''), (f'{hub}/{folder}/train', f'{hub}/{folder}/validation'),
                           (tmp_path / 'train.parquet', tmp_path / 'validation.parquet')):
        assert opened(f'squad_{version}', source, tmp_path, eval_source=str(scored)
                      ).identity() == from_files.identity()
    with pytest.raises(InputError, match='eval_source is empty: name the file'):
        opened(f'squad_{version}', f'{hub}/{folder}/train', tmp_path)
    outputs = {name: np.zeros(len(by_name.train.sequences.ids), np.float32)
               for name in ('start_logits', 'end_logits')}
    assert by_name.results([outputs]) == from_files.results([outputs])


def test_conll_is_the_same_by_name_and_from_files(tmp_path, on_hub):
    def contents(task):
        """(id, label) of each token of each sentence, sorted: the builder shuffles sentences."""
        return [sorted(x.tolist() for x in np.split(
            np.column_stack([u.sequences.ids, u.tokens['token_labels']]),
            u.sequences.offsets[1:-1])) for u in (task.train, *(s.units for s in task.evaluated))]

    folder = tmp_path / 'conll'
    for name in ('train', 'valid', 'test'):
        put(folder, f'{name}.txt', TAGGED)
    prepare('conll2003', str(tmp_path / 'tfds'), folder)
    from_files = opened('conll', folder, tmp_path)
    by_name = opened('conll', 'tfds:conll2003', tmp_path)
    assert by_name.labels == ('O', 'B-LOC', 'I-LOC', 'B-PER', 'I-PER') == from_files.labels
    assert contents(by_name) == contents(from_files)
    names = ['O', 'B-PER', 'I-PER', 'B-ORG', 'I-ORG', 'B-LOC', 'I-LOC', 'B-MISC', 'I-MISC']
    hub = 'hf:datasets/eriktks/conll2003@refs/convert/parquet'
    for split, feature in (('train', {'feature': {'_type': 'ClassLabel', 'names': names}}),
                           ('validation', {}), ('test', {})):  # names may be missing
        on_hub[f'{hub}/conll2003/{split}'] = parquet(
            tmp_path / f'{split}.parquet', {'ner_tags': feature},
            tokens=[WORDS[3:5] + ['was', 'born', 'in', 'antwerp'], ['the', 'leader']],
            ner_tags=[[1, 2, 0, 0, 0, 5], [0, 0]])
    assert contents(opened('conll', hub, tmp_path)) == contents(from_files)
    for source in (hub, 'tfds:conll2003'):
        with pytest.raises(InputError, match='has lost the documents'):
            opened('conll', source, tmp_path, own={'document_context': True})


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
    tokens = test.units.tokens
    right = np.eye(5, dtype=np.float32)[
        np.where(tokens['token_weights'] > 0, tokens['token_labels'], 0)]
    scores, files = test.results({'logits': right})
    cells = [line.split(' ') for line in TAGGED.replace('john', 'antwerp').split('\n')[2:]]
    assert scores['f1'] == 1 and files == {'test_predictions.txt': '\n'.join(
        ' '.join([x[0], x[-1], x[-1]] if x[0] else []) for x in cells)}


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


CSV = ['text,label', *(f'"{WORDS[i % 10]}, {WORDS[i % 7]}",{("good", "bad", "so so")[i % 3]}'
                       for i in range(60))]


def test_labels_come_from_the_data_and_a_share_is_held_out(tmp_path, capsys):
    source = put(tmp_path, 'own.csv', CSV)
    task = opened('classification', source, tmp_path, held_out=0.25)
    assert task.labels == ('bad', 'good', 'so so') and task.head == 'classification'
    assert task.metric == 'accuracy' and task.arguments == {'num_outputs': 3}
    assert len(task.train) + len(task.evaluated[0].units) == 60
    said = capsys.readouterr().out
    assert 'labels: bad' in said and 'held out of training' in said and 'are cut at' in said
    assert f'scored: {len(task.evaluated[0].units)} of 60 examples of {source} (' in said


@pytest.mark.parametrize(('counts', 'share', 'few', 'far'), [
    ([50] * 30, 0.1, True, False),  # of three texts, or of none, by the hash alone
    ([900, *[1] * 600], 0.1, False, False),
    ([1] * 1000, 0.1, False, False),
    ([400, *[2] * 200], 0.4, False, False),
    ([500, 300, 200], 0.25, True, False),
    ([960, *[1] * 40], 0.3, False, True),
])
def test_equal_texts_are_on_one_side_and_the_share_is_near(counts, share, few, far, tmp_path,
                                                           capsys):
    rows = [(f'the leader was born {i}', 'ab'[(i + j) % 2])
            for i, count in enumerate(counts) for j in range(count)]
    source = put(tmp_path, 'own.csv', ['text,label', *map(','.join, rows)])
    out = held_out([f'{text}\n{text}' for text, _ in rows], share, source)
    sides = {side: {text for (text, _), x in zip(rows, out, strict=True) if x == side}
             for side in (True, False)}
    assert not sides[True] & sides[False]
    assert (abs(out.mean() - share) > share / 2) == far
    opened('classification', source, tmp_path, held_out=share)
    said = capsys.readouterr().out
    assert (f'scored: {out.sum():,} of {len(rows):,} examples of {source} ({len(sides[True])} of '
            f'{len(counts):,} distinct texts)') in said
    assert (' distinct texts are few to score' in said) == few
    assert ('asks for' in said) == far


def test_an_example_stays_on_its_side_when_others_are_added():
    texts = [f'text {i}' for i in range(2000)]
    before = held_out(texts[:700], 0.1, 'a file')
    assert held_out([*texts[1000:], *texts[:700]], 0.1, 'a file')[1000:].tolist() == before.tolist()


def test_guessing_has_the_published_scores_of_the_majority(shared_data, tmp_path):
    """68.4 % of MRPC's dev set are paraphrases (Dolan and Brockett, 2005): an F1 of 81.2."""
    found = opened('mrpc', shared_data / 'glue', tmp_path, vocab_file=str(
        shared_data / 'vocab' / 'bert-base-uncased-vocab.txt')).majority_baseline
    assert {name: round(100 * x, 1) for name, x in found.items()} == {'f1': 81.2, 'accuracy': 68.4}


@pytest.mark.parametrize('given, weights', [
    ('', ()), ('balanced', (2 / 3, 2.0)), ('bad=3, good=0.5', (3.0, 0.5)), ('good=2', (1.0, 2.0)),
    ('best=2', 'labels are bad, good'), ('good', 'LABEL=NUMBER'), ('good=-1', 'LABEL=NUMBER'),
])
def testclass_weights(tmp_path, given, weights):
    source = put(tmp_path, 'own.csv', [
        'text,label', *(f'{WORDS[i]},{"good" if i == 3 else "bad"}' for i in range(4))])
    config = config_of(
        'classification', source, tmp_path, {'class_weights': given}, eval_source=True)
    if isinstance(weights, str):
        with pytest.raises(InputError, match=weights):
            open_task(config)
    else:
        assert open_task(config).arguments.get('class_weights', ()) == pytest.approx(weights)


def test_balanced_weights_are_of_the_classes_that_are_trained():
    """The middle one has held-out rows only; the others weigh as if it did not exist."""
    weights = class_weights('balanced', ('bad', 'best', 'good'), np.array([3, 0, 2]))
    assert weights == pytest.approx((5 / 6, 1.0, 5 / 4))


def test_a_model_with_one_segment_type_is_not_trained_on_pairs(tmp_path):
    source = put(tmp_path, 'own.csv', ['a,b,label', *(f'the,{word},x' for word in WORDS),
                                       *(f'was,{word},y' for word in WORDS)])
    bert = mock.Mock(type_vocab_size=1)
    for columns, fits in (({'text_pair': 'b'}, False), ({}, True)):
        task = opened('classification', source, tmp_path, eval_source=True, text='a', **columns)
        with contextlib.nullcontext() if fits else pytest.raises(
                InputError, match='the model has one segment type, and there are pairs'):
            task.make_head(bert)


def test_long_texts_are_scored_by_their_windows(tmp_path):
    source = put(tmp_path, 'own.csv', ['text,label', 'john,good', ' '.join(WORDS) + ',bad'])
    task = opened('classification', source, tmp_path, own={'windows': 'max'}, eval_source=True,
                  max_seq_length=8)
    assert task.inference == {'windows': 'max', 'max_seq_length': 8, 'num_texts': 1}
    assert len(task.train) == 2
    (dev,) = task.evaluated
    assert len(dev.units) == 4  # one of the first text, three of the second: 6 of its 10 words each
    logits = np.array([[0, 1], [0, 1], [5, 0], [0, 1]], np.float32)  # one window is sure of 'bad'
    scores, files = dev.results({'logits': logits})
    assert task.labels == ('bad', 'good') and scores['accuracy'] == 1
    assert files['dev_predictions.tsv'] == 'index\tprediction\n0\tgood\n1\tbad\n'


def test_a_label_that_occurs_only_in_evaluation_counts_as_a_wrong_prediction(tmp_path, capsys):
    source = put(tmp_path, 'train.csv', CSV)
    dev = put(tmp_path, 'dev.csv', 'text,label\nthe leader,good\njohn,awful\n')
    (dev,) = opened('classification', source, tmp_path, eval_source=dev).evaluated
    scores, files = dev.results({'logits': np.float32([[0, 1, 0], [0, 0, -9999]])})
    assert scores['accuracy'] == 0.5
    assert files['dev_examples.csv'] == (
        'index,text,label,prediction,probability of bad,probability of good,probability of so so\n'
        '0,the leader,good,good,0.211942,0.576117,0.211942\n'
        '1,john,(not in training),bad,0.5,0.5,0\n')
    assert files['dev_classes.csv'] == (
        'label,count,precision,recall,f1,roc_auc,predicted bad,predicted good,predicted so so\n'
        'bad,0,0,0,0,0,0,0,0\ngood,1,1,1,1,1,0,1,0\nso so,0,0,0,0,0,0,0,0\n')
    assert 'awful occur only in evaluation' in capsys.readouterr().out
    # Several labels an example.
    source = put(tmp_path, 'train.csv', 'text,label\nthe leader,a\njohn,b\n')
    dev = put(tmp_path, 'dev.csv', 'text,label\nthe leader,new\njohn,"a,other"\n')
    task = opened('classification', source, tmp_path, own={'multi_label': True}, eval_source=dev)
    logits = np.array([[-1, -1], [1, -1]], np.float32)  # nothing, and 'a'
    scores, _ = task.evaluated[0].results({'logits': logits})
    assert scores.pop('loss') == pytest.approx(
        np.mean(np.log1p(np.exp([-1, -1, -1, -1]))))  # over the labels that the model has
    assert scores == {'accuracy': 0, 'micro_f1': 2 / 4, 'macro_f1': 1 / 4}


def test_labels_that_look_like_scores_of_a_regression_get_a_warning(tmp_path, capsys):
    source = put(tmp_path, 'own.csv', 'text,label\nthe leader,0.5\njohn,1.25\nsmith,3.0\n')
    opened('classification', source, tmp_path, eval_source=True)
    assert 'configs/regression.py predicts numbers' in capsys.readouterr().out


@pytest.mark.parametrize('label, none', [
    (['a', 'b'], []), ('a,b', ''), ('["a", "b"]', None), ('["a", "b"]', '')])
def test_several_labels_an_example(label, none, tmp_path):
    source = put(tmp_path, 'own.jsonl', [
        {'body': 'the leader', 'kinds': label}, {'body': 'john', 'kinds': 'b'},
        {'body': 'smith', 'kinds': none}])
    task = opened('classification', source, tmp_path, own={'multi_label': True},
                  eval_source=True, text='body', label='kinds')
    assert task.head == 'multi_label' and task.labels == ('a', 'b')
    marks = np.array([[1, 1], [0, 1], [0, 0]], np.float32)
    np.testing.assert_array_equal(task.train.labels['labels'], marks)
    scores, files = task.evaluated[0].results({'logits': marks - 0.5})
    assert scores == {'micro_f1': 1.0, 'macro_f1': 1.0, 'accuracy': 1.0,
                      'loss': pytest.approx(np.log1p(np.exp(-0.5)))}
    assert files['dev_predictions.tsv'] == 'index\tprediction\n0\ta,b\n1\tb\n2\t\n'
    assert files['dev_classes.csv'].endswith('\na,1,1,1,1,1\nb,2,1,1,1,1\n')


@pytest.mark.parametrize(('cells', 'labels', 'said'), [
    (['delivery|price', 'price', 'delivery'], ('delivery', 'price'), "separated by '|'"),
    (['delivery; price', 'price', ''], ('delivery', 'price'), "separated by ';'"),
    (['food, drink|price', 'food, drink', 'price'], ('food, drink', 'price'), "separated by '|'"),
    (['price/delivery', 'price', 'delivery'], ('delivery', 'price'), "separated by '/'"),
    (['price delivery', 'price', 'delivery'], ('delivery', 'price'), "separated by ' '"),
    (['read/write', 'price', 'so so'], ('price', 'read/write', 'so so'), ''),
    (['C++', 'C', 'C#'], ('C', 'C#', 'C++'), ''),
    (['en/tea', 'en/ale', 'de/tea', 'de/ale'], ('de/ale', 'de/tea', 'en/ale', 'en/tea'),
     "'/' recurs inside labels, such as 'de/ale': if it separates them, set"),
    (["['delivery', 'price']", "['price']", '[]'], ('delivery', 'price'), ''),
    (["['delivery' 'price']", "['price']", '[]'], ('delivery', 'price'), ''),
    (['["delivery", "price"]', 'price', ''], ('delivery', 'price'), ''),
])
def test_how_a_cell_holds_several_labels_is_found_and_said(cells, labels, said, tmp_path, capsys):
    """In the first two rows of each table the labels are all that occur, then one of them."""
    rows = [{'text': word, 'label': cell} for word, cell in zip(WORDS, cells)]
    task = opened('classification', put(tmp_path, 'own.jsonl', rows), tmp_path,
                  own={'multi_label': True}, eval_source=True)
    assert task.labels == labels
    if len(labels) == 2:
        assert task.train.labels['labels'][0].tolist() == [1, 1]
        assert task.train.labels['labels'][1].sum() == 1
    out = capsys.readouterr().out
    assert said in out and ('separated by' in out) == ('separated by' in said)


def test_the_separator_can_be_named_and_must_be_where_several_are_possible(tmp_path):
    source = put(tmp_path, 'own.tsv', 'text\tlabel\nthe\ta|b\njohn\ta,b\n')
    with pytest.raises(InputError, match="',' and '|' occur inside labels, .*separator"):
        opened('classification', source, tmp_path, own={'multi_label': True}, eval_source=True)
    task = opened('classification', source, tmp_path, eval_source=True,
                  own={'multi_label': True, 'separator': '|'})
    assert task.labels == ('a', 'a,b', 'b')


@pytest.mark.parametrize('one, many', [
    ([0, 0, 0, 1], [0, 1, 1, 1]), ([0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0]),
    ([False, False, False, True], [False, True, True, True]),
    ('[0, 0, 0, 1]', '[0, 1, 1, 1]'), ('[0 0 0 1]', '[0 1 1 1]'), ('0,0,0,1', '0,1,1,1'),
    ('[0., 0., 0., 1.]', '[0.0, 1.0, 1.0, 1.0]'),
    ('[False, False, False, True]', '[False, True, True, True]'),
])
def test_places_of_0_and_1_are_labels_by_name_or_refused(one, many, tmp_path, capsys):
    source = put(tmp_path, 'own.jsonl', [
        {'text': word, 'label': label} for word, label in zip(WORDS, (one, many, many))])
    own = {'own': {'multi_label': True}, 'eval_source': True}
    task = opened('classification', source, tmp_path, label_names='hotel,food,train,staff', **own)
    assert task.labels == ('hotel', 'food', 'train', 'staff')
    assert task.train.labels['labels'].tolist() == [[0, 0, 0, 1], [0, 1, 1, 1], [0, 1, 1, 1]]
    assert 'places of 0 and 1 (multi-hot)' in capsys.readouterr().out
    for names in ('', 'hotel,food,train'):
        with pytest.raises(InputError, match='lists of 4 places of 0 and 1 .*label_names='):
            opened('classification', source, tmp_path, label_names=names, **own)
    if one != '0,0,0,1':  # of which every text may be one label
        with pytest.raises(InputError, match='multi_label=True'):
            opened('classification', source, tmp_path, eval_source=True)


def test_lists_of_label_numbers_are_no_places_of_0_and_1(tmp_path):
    source = put(tmp_path, 'own.jsonl', [
        {'text': word, 'label': label} for word, label in zip(WORDS, ([0], [1], [0, 1], []))])
    task = opened('classification', source, tmp_path, own={'multi_label': True},
                  eval_source=True, label_names='hotel,food')
    assert task.train.labels['labels'].tolist() == [[1, 0], [0, 1], [1, 1], [0, 0]]


def test_several_labels_in_columns_of_their_own(tmp_path):
    source = put(tmp_path, 'own.csv', 'text,b,a\nthe leader,1,true\njohn,0.0,False\nsmith,,1.0\n')
    own = {'own': {'multi_label': True}, 'eval_source': True, 'label': 'b, a'}
    task = opened('classification', source, tmp_path, **own)
    assert task.labels == ('b', 'a')
    assert task.train.labels['labels'].tolist() == [[1, 1], [0, 0], [0, 1]]
    source = put(tmp_path, 'own.csv', 'text,b,a\nthe leader,1,2\n')
    with pytest.raises(InputError, match="line 2: 'a' is '2', where 0 or 1 is wanted"):
        opened('classification', source, tmp_path, **own)


def parquet(path, metadata=(), **columns):
    import pyarrow
    from pyarrow import parquet

    info = {'info': {'features': dict(metadata)}}
    parquet.write_table(pyarrow.table(columns).replace_schema_metadata(
        {'huggingface': json.dumps(info)}), path)
    return str(path)


NAMES = {'_type': 'ClassLabel', 'names': ['yes', 'maybe', 'no']}


@pytest.mark.parametrize('feature, multi_label, label, ids', [
    (NAMES, False, [2, 0, 2, -1], [2, 0, 2]),  # -1: unlabelled
    ({'_type': 'List', 'feature': NAMES}, True, [[2, 0], [], [1]],
     [[1, 0, 1], [0, 0, 0], [0, 1, 0]]),
])
def test_labels_that_are_numbers_get_their_names(feature, multi_label, label, ids, tmp_path):
    own = {'own': {'multi_label': multi_label}, 'eval_source': True, 'max_malformed': 0.5}
    columns = {'text': WORDS[: len(label)], 'label': label}
    source = parquet(tmp_path / 'a.parquet', {'label': feature}, **columns)
    task = opened('classification', source, tmp_path, **own)
    assert task.labels == ('yes', 'maybe', 'no')
    assert task.train.labels['labels'].tolist() == ids
    source = parquet(tmp_path / 'b.parquet', **columns)
    assert opened('classification', source, tmp_path, label_names='x,y,z', **own).labels == (
        'x', 'y', 'z')
    source = put(tmp_path, 'c.csv', 'text,label\nthe,1\njohn,other\nan,0\n')
    task = opened('classification', source, tmp_path, label_names='x,y', eval_source=True)
    assert task.labels == ('x', 'y', 'other') and task.train.labels['labels'].tolist() == [1, 2, 0]


def test_regression_on_pairs(tmp_path):
    source = put(tmp_path, 'own.tsv', [
        'a\tb\tgrade', *(f'the\t{word}\t{i / 4 - 1}' for i, word in enumerate(WORDS))])
    task = opened('regression', source, tmp_path, eval_source=True, text='a', text_pair='b',
                  label='grade')
    assert task.head == 'regression' and task.metric == 'spearman'
    assert task.majority_baseline == {'spearman': 0, 'pearson': 0}
    assert task.inference['num_texts'] == 2
    labels = task.train.labels['labels']
    assert labels.tolist() == [i / 4 - 1 for i in range(10)]
    assert task.results([{'logits': labels[:, None]}])[0]['pearson'] > 0.999
    assert all(n == 2 for n in task.train.sequences.first_lengths - 1)


@pytest.mark.parametrize('where', ['option', 'file', 'Parquet'])
def test_tags_that_are_numbers_get_their_names(where, tmp_path, capsys):
    tags, own = [[1, 0], [0, 0]], {'eval_source': True}
    source = put(tmp_path, 'own.jsonl', [{'text': WORDS[:2], 'label': row} for row in tags])
    if where == 'Parquet':
        feature = {'_type': 'Sequence', 'feature': NAMES | {'names': ['O', 'B-PER', 'I-PER']}}
        source = parquet(
            tmp_path / 'a.parquet', {'label': feature}, text=[WORDS[:2]] * 2, label=tags)
    else:
        assert opened('tagging', source, tmp_path, **own).metric == 'accuracy'
        assert 'no entities can be made: name them with' in capsys.readouterr().out
        own['label_names'] = put(
            tmp_path, 'names', 'O\nB-PER\nI-PER\n') if where == 'file' else 'O,B-PER,I-PER'
    task = opened('tagging', source, tmp_path, **own)
    assert task.metric == 'f1' and task.labels == ('O', 'B-PER', 'I-PER')
    with pytest.raises(InputError, match='label 1 has no name in config.data.label_names'):
        opened('tagging', source, tmp_path, **own | {'label_names': 'O', 'max_malformed': 0.0})
    source = put(tmp_path, 'null.jsonl', [{'text': WORDS[:2], 'label': ['B-PER', None]}])
    with pytest.raises(InputError, match='1 of 1 rows are malformed .* its label is empty'):
        opened('tagging', source, tmp_path, eval_source=True)


POS = '\n'.join(f'{a} DT\n{b} NN\n' for a, b in zip(WORDS, WORDS[1:]))


@pytest.mark.parametrize(('text', 'labels', 'metric'), [
    (POS, ('DT', 'NN'), 'accuracy'),
    ('john S-PER\nwas O\n\njohn B-PER\nsmith E-PER\n', ('O', 'B-PER', 'I-PER'), 'f1'),
    ('john I-PER\nsmith B-PER\n\nwas O\n', ('O', 'B-PER', 'I-PER'), 'f1'),
])
def test_your_own_tags(text, labels, metric, tmp_path):
    source = put(tmp_path, 'own.txt', text)
    task = opened('tagging', source, tmp_path, eval_source=True)
    assert task.labels == labels and task.metric == metric
    assert task.majority_baseline == {metric: 0.5 if metric == 'accuracy' else 0.0}
    (dev,) = task.evaluated
    right = np.eye(len(labels), dtype=np.float32)[dev.units.tokens['token_labels']]
    assert dev.results({'logits': right})[0][metric] == 1


# Sentences of the same entities, as taggers of each scheme have learned to write them.
SCHEMES = {
    'IOB1': 'I-A I-A B-A O I-B',
    'IOB2': 'B-A I-A B-A O B-B',
    'IOBES': 'B-A E-A S-A O S-B',
    'BILOU': 'B-A L-A U-A O U-B',
    'lower case': 'b-A i-A b-A o b-B',
    'letters last': 'A-B A-I A-B O B-B',
}


@pytest.mark.parametrize('gold', ['IOB1', 'IOB2', 'IOBES', 'lower case'])
@pytest.mark.parametrize('scheme', SCHEMES)
def test_a_perfect_tagger_trained_elsewhere_is_perfect_whatever_the_schemes(
    scheme, gold, tmp_path
):
    rows = [f'{word} {tag}' for word, tag in zip(WORDS, SCHEMES[gold].split())]
    source = put(tmp_path, 'own.txt', '\n'.join(rows) + '\n')
    tags = SCHEMES[scheme].split()
    known = {*tags, *(tag.replace('I', 'B', 1) for tag in tags if scheme == 'IOB1')}
    labels = tuple(sorted(known - {'O', 'o'})) + tuple(known & {'O', 'o'})
    config = config_of('tagging', source, tmp_path, eval_source=True)
    (dev,) = open_task(config, ScoredModel(labels)).evaluated
    logits = np.zeros((len(dev.units.sequences.ids), len(labels)), np.float32)
    logits[np.arange(1, 6), [labels.index(tag) for tag in tags]] = 50
    scores, files = dev.results({'logits': logits})
    assert scores['f1'] == scores['accuracy'] == 1 and scores['loss'] < 1e-6
    assert files['dev_predictions.txt'].splitlines()[:5] == [
        f'{word} {tag} {tag}' for word, tag in zip(WORDS, tags)]


def test_a_tagger_of_entities_without_beginnings_is_scored_by_its_own_tags(tmp_path):
    source = put(tmp_path, 'own.txt', 'john B-A\nsmith B-A\nwas O\nborn B-B\n')
    config = config_of('tagging', source, tmp_path, eval_source=True)
    labels = ('O', 'I-A', 'I-B')
    (dev,) = open_task(config, ScoredModel(labels)).evaluated
    logits = np.zeros((len(dev.units.sequences.ids), 3), np.float32)
    logits[np.arange(1, 5), [1, 1, 0, 2]] = 50
    scores, _ = dev.results({'logits': logits})
    assert scores['accuracy'] == 1 and scores['loss'] < 1e-6
    assert scores['f1'] == 2 / 5  # two entities side by side are one in its scheme


@pytest.mark.parametrize(('text', 'said'), [
    ('john PER\nwas O\n', 'not every tag marks one: PER; for F1, write tags as B-TYPE'),
    ('john B\nwas O\n', 'not every tag marks one: B; for F1'),
    ('john I-PER\nwas O\n', 'are read as IOB2: the first change is from I-PER to B-PER'),
    ('john PER-U\nwas O\n', 'are read as IOB2: the first change is from PER-U to B-PER'),
])
def test_how_tags_are_read_is_said(text, said, tmp_path, capsys):
    opened('tagging', put(tmp_path, 'own.txt', text), tmp_path, eval_source=True)
    assert said in capsys.readouterr().out


def test_an_empty_word_is_scored_like_any_other(tmp_path):
    source = put(tmp_path, 'own.jsonl', [{'text': ['john', '', 'was'], 'label': list('XYX')}])
    task = opened('tagging', source, tmp_path, eval_source=True)
    (dev,) = task.evaluated
    right = np.eye(2, dtype=np.float32)[dev.units.tokens['token_labels']]
    scores, files = dev.results({'logits': right})
    assert scores['accuracy'] == 1
    assert files['dev_predictions.txt'] == 'john X X\n[UNK] Y Y\nwas X X\n\n'


def test_labels_that_differ_only_in_case_are_those_of_the_model(tmp_path, capsys):
    rows = ['text,label', 'john,NO', 'was,yes', 'born,Maybe']
    config = config_of('classification', put(tmp_path, 'own.csv', rows), tmp_path, eval_source=True)
    task = open_task(config, ScoredModel(('yes', 'no', 'maybe')))
    assert task.evaluated[0].units.labels['labels'].tolist() == [1, 0, 2]
    said = capsys.readouterr().out
    assert 'differ only in case are one: Maybe is maybe, NO is no' in said
    # Training does not know which are meant.
    source = put(tmp_path, 'two.csv', ['text,label', 'john,NO', 'was,no', 'born,yes'])
    assert opened('classification', source, tmp_path, eval_source=True).labels == (
        'NO', 'no', 'yes')
    assert 'warning: the labels NO and no differ only in case' in capsys.readouterr().out


def test_a_tag_that_occurs_only_in_evaluation_counts_as_a_wrong_prediction(tmp_path, capsys):
    source = put(tmp_path, 'own.jsonl', [{'text': ['the', 'leader'], 'label': [0, 1]}])
    dev = put(tmp_path, 'dev.jsonl', [{'text': ['the', 'john'], 'label': [0, 7]}])
    task = opened('tagging', source, tmp_path, eval_source=dev)
    size = len(task.evaluated[0].units.sequences.ids)
    scores, _ = task.evaluated[0].results({'logits': np.tile([[1.0, 0.0]], (size, 1))})
    assert task.labels == ('0', '1') and scores['accuracy'] == 0.5
    assert scores['loss'] == pytest.approx(np.log1p(np.exp(-1)))  # over words with known tags
    assert '7 occur only in evaluation' in capsys.readouterr().out


def test_your_own_choices(tmp_path):
    source = put(tmp_path, 'own.csv', ['q,a,b,y', *(
        f'{word},{WORDS[i - 1]},{WORDS[i - 2]},{"ab"[i % 2]}' for i, word in enumerate(WORDS))])
    own = {'text': 'q', 'choices': 'a, b', 'label': 'y', 'held_out': 0.3}
    config = config_of('multiple_choice', source, tmp_path, **own)
    task = open_task(config)
    assert task.head == 'multiple_choice' and task.arguments == {'num_outputs': 2}
    (dev,) = task.evaluated
    assert len(task.train) + len(dev.units) == 10 and dev.units.choices == 2
    assert dev.results({'logits': np.eye(2)[dev.units.labels['labels']]})[0] == {
        'accuracy': 1, 'loss': pytest.approx(np.log1p(np.exp(-1)))}
    only = open_task(config, ScoredModel())
    assert only.train is None and only.evaluated[0].units.digest() == dev.units.digest()
    with pytest.raises(InputError, match='name the columns of the choices'):
        opened('multiple_choice', source, tmp_path, **own | {'choices': ''})


@pytest.mark.parametrize(('task', 'fields', 'read', 'lacking'), [
    ('classification', {'sentence': 'the leader', 'sentiment': 'a'}, ['sentence', 'sentiment'], []),
    ('classification', {'Text': 'the leader', 'Label': 'a'}, ['Text', 'Label'], []),
    ('regression', {'review': 'the leader', 'rating': 1}, ['review', 'rating'], []),
    ('tagging', {'tokens': ['the'], 'ner_tags': ['B-X']}, ['tokens', 'ner_tags'], []),
    ('tagging', {'words': ['the'], 'tags': ['B-X'], 'id': 3}, ['words', 'tags'], []),
    ('tagging', {'tokens': ['the'], 'ner_tags': ['B-X'], 'pos_tags': ['D']}, ['tokens'], ['label']),
    ('classification', {'sentence': 'the leader', 'body': 'john', 'label': 'a'}, [], ['text']),
    ('classification', {'sentence': 'the leader', 'kind': 'a'}, ['sentence'], ['label']),
])
def test_columns_with_usual_names_are_read_and_said(task, fields, read, lacking, tmp_path, capsys):
    other = {name: 'b' if value == 'a' else value for name, value in fields.items()}
    source = put(tmp_path, 'own.jsonl', [fields, other])
    if lacking:
        with pytest.raises(InputError, match=f"no column '{lacking[0]}'.*config.data.text"):
            opened(task, source, tmp_path, eval_source=True)
    else:
        assert len(opened(task, source, tmp_path, eval_source=True).train) == 2
    said = capsys.readouterr().err
    for name in read:
        assert (f"its column '{name}' is read for config.data." in said) == (
            name not in ('text', 'label'))
    with pytest.raises(InputError, match="no column 'sentences'"):  # a name that somebody chose
        opened(task, source, tmp_path, eval_source=True, text='sentences')


def test_a_choice_without_words_is_left_out(tmp_path, capsys):
    source = put(tmp_path, 'own.csv', 'text,a,b,label\nthe,john,smith,a\njohn,,the,b\n,a,b,b\n')
    task = opened('multiple_choice', source, tmp_path, choices='a,b', eval_source=True)
    assert len(task.train) == 1 == len(task.evaluated[0].units)
    assert f'{source}: 2 of 3 rows have an empty text; left out' in capsys.readouterr().out


@pytest.mark.parametrize('source', ['a.csv,b.csv', '*.csv', '[ab].csv'])
def test_one_file_is_wanted_by_its_name(source, tmp_path):
    for name in 'ab':
        put(tmp_path, f'{name}.csv', CSV)
    with pytest.raises(InputError, match='does not exist: .* one and by its name'):
        opened('classification', tmp_path / source, tmp_path)


@pytest.mark.parametrize(('text', 'data', 'said'), [
    ('text,label\nthe,a\njohn,a\n', {}, 'own.csv has one label, a'),
    ('text,label\nthe,a\njohn,b\n', {'held_out': 0.0}, 'would leave'),
])
def test_data_with_one_label_or_no_held_out_rows_are_refused(text, data, said, tmp_path):
    with pytest.raises(InputError, match=said):
        opened('classification', put(tmp_path, 'own.csv', text), tmp_path, **data)


def test_questions_of_your_own_are_held_out_by_their_paragraphs(tmp_path, capsys):
    rows = [{'id': f'{i}{word}', 'question': f'who was {word}', 'context': f'{word} was john',
             'answers': {'text': ['john'], 'answer_start': [len(word) + 5]}}
            for word in WORDS for i in range(2)]
    rows[3]['answers']['answer_start'] = [0]  # left out of training
    config = config_of('squad_v1', put(tmp_path, 'own.jsonl', rows), tmp_path, held_out=0.3)
    task = open_task(config)
    said = capsys.readouterr().out
    (dev,) = task.evaluated
    train, scored = (set(units.contents()) for units in (task.train, dev.units))
    assert train and scored and not train & scored
    assert 19 <= len(task.train) + len(dev.units) <= 20 and len(dev.units) % 2 == 0
    assert f'{len(dev.units)} questions to score, on {len(dev.units) // 2} paragraphs' in said
    again = open_task(config, ScoredModel())
    assert again.train is None and again.evaluated[0].units.digest() == dev.units.digest()


@pytest.mark.parametrize('task', ['rte', 'conll', 'squad_v1'])
def test_a_training_file_is_not_scored_unless_it_is_the_eval_source(task, tmp_path):
    name = 'train-v1.1.json' if task == 'squad_v1' else 'train.tsv'  # SQuAD's has no rows to spare
    source = put(tmp_path, name, TAGGED)
    with pytest.raises(InputError, match='config.data.eval_source is empty'):
        open_task(config_of(task, source, tmp_path), ScoredModel())
