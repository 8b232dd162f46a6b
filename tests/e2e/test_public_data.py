"""The commands of the README as they stand, in an empty home: text, data and weights come by name.

The Hugging Face hub is a stand-in with small files of the same names and columns.
"""

import io
import json
import random

import pytest

from tests.conftest import run_python
from tests.stand_in_hub import Hub, serving
from tests.tiny_runs import sentence

pytestmark = pytest.mark.slow
RNG = random.Random(0)
TINY = (
    '--config.model.num_layers=1', '--config.model.hidden_size=16', '--config.model.num_heads=2',
    '--config.model.intermediate_size=32', '--config.data.vocab_size=500',
    "--config.phases=({'steps': 3, 'max_seq_length': 128},)", '--config.train.batch_size=8',
    '--config.train.eval_batch_size=8', '--config.train.max_eval_examples=8',
    '--config.data.held_out=0.1')


def parquet(classes=(), **columns) -> bytes:
    """A Parquet file as Hugging Face's `datasets` writes it; `classes` are those of `ner_tags`."""
    import pyarrow
    from pyarrow import parquet

    features = {'ner_tags': {'feature': {'_type': 'ClassLabel', 'names': classes}}}
    table = pyarrow.table(columns).replace_schema_metadata(
        {'huggingface': json.dumps({'info': {'features': features}})})
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


def texts(count, sentences=1):
    return [' '.join(f'{sentence(RNG).capitalize()}.' for _ in range(sentences))
            for _ in range(count)]


def articles(count):
    return parquet(id=[str(i) for i in range(count)], url=['u'] * count, title=['T'] * count,
                   text=texts(count, 20))


def mrpc(count):
    return parquet(sentence1=texts(count), sentence2=texts(count),
                   label=[i % 2 for i in range(count)], idx=list(range(count)))


def squad(count):
    contexts = texts(count, 3)
    words = [context.split()[2] for context in contexts]
    return parquet(
        id=[f'q{i}' for i in range(count)], title=['T'] * count, context=contexts,
        question=[f'{text}?' for text in texts(count)],
        answers=[{'text': [word], 'answer_start': [context.index(f' {word}') + 1]}
                 for word, context in zip(words, contexts, strict=True)])


def splits(path, content, **names):
    """Files of a data set: name of the split -> number of rows."""
    return {f'{path}{name}-00000-of-00001.parquet': content(rows) for name, rows in names.items()}


@pytest.fixture(scope='module')
def home(tmp_path_factory):
    """(an empty home, the environment of programs in it)."""
    folder = tmp_path_factory.mktemp('home')
    Hub.repositories = {
        'datasets/wikimedia/wikipedia': {
            f'20231101.en/train-0000{i}-of-00002.parquet': articles(60) for i in range(2)},
        'datasets/nyu-mll/glue': splits('mrpc/', mrpc, train=40, validation=8, test=8),
        'datasets/rajpurkar/squad': splits('plain_text/', squad, train=40, validation=8),
    }
    with serving(str(folder / 'huggingface')) as environment:
        yield folder, environment | {'HOME': str(folder)}


def run(home, *arguments):
    """What a command printed, line by line."""
    folder, environment = home
    done = run_python('-m', *arguments, f'--config.data.dir={folder}/cache', **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_text_weights_and_data_come_by_name(home):
    folder, environment = home
    large = f'{folder}/large'
    first = run(home, 'bert_jax.main', '--config=configs/large_pretrain.py', *TINY,
                f'--workdir={large}')
    assert json.loads(first[-1].removeprefix('result '))['step'] == 3
    done = run_python('-m', 'bert_jax.convert', large, folder / 'bert', '--to', 'huggingface')
    assert done.returncode == 0, done.stderr
    Hub.repositories['google-bert/bert-base-uncased'] = {
        file.name: file.read_bytes() for file in (folder / 'bert').iterdir()}
    for config, score in (('glue.py:mrpc', 'eval/f1'), ('squad.py:v1', 'eval/exact_match')):
        said = run(home, 'bert_jax.main', f'--config=configs/{config}', '--config.debug=True',
                   f'--workdir={folder}/{config}')
        assert said[0] == 'training starts from the weights of hf:google-bert/bert-base-uncased'
        assert score in json.loads(said[-1].removeprefix('result '))
    # A folder of the user's wins; the weights are in the cache.
    offline = environment | {'HF_HUB_OFFLINE': '1'}
    done = run_python('-m', 'bert_jax.main', '--config=configs/glue.py:mrpc',
                      '--config.data.source=none', f'--workdir={folder}/none', **offline)
    assert done.returncode == 2 and 'no folder none/MRPC' in done.stderr
