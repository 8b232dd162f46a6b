"""The commands of the README as they stand, in an empty home: text, data and weights come by name.

The Hugging Face hub is a stand-in with small files of the same names and columns.
"""

import dataclasses
import io
import json
import random
from pathlib import Path

import pytest

from bert_jax import convert
from tests.conftest import ROOT, xla_flags
from tests.programs import run_modules, run_program
from tests.stand_in_hub import Hub, serving
from tests.tiny_runs import paragraph

pytestmark = pytest.mark.slow
RNG = random.Random(0)
TINY = (
    '--config.model.num_layers=1',
    '--config.model.hidden_size=16',
    '--config.model.num_heads=2',
    '--config.model.intermediate_size=32',
    '--config.data.vocab_size=500',
    '--config.data.held_out=0.1',
    "--config.phases=({'steps': 3, 'max_seq_length': 128},)",
    '--config.train.batch_size=8',
    '--config.train.eval_batch_size=8',
    '--config.train.max_eval_examples=8',
)


def parquet(**columns) -> bytes:
    """A Parquet file as Hugging Face's `datasets` writes it."""
    import pyarrow
    from pyarrow import parquet

    features = {'ner_tags': {'feature': {'_type': 'ClassLabel', 'names': ()}}}
    metadata = {'huggingface': json.dumps({'info': {'features': features}})}
    table = pyarrow.table(columns).replace_schema_metadata(metadata)
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


def texts(count, sentences=1):
    return [paragraph(RNG, sentences) for _ in range(count)]


def articles(count):
    return parquet(
        id=[str(i) for i in range(count)],
        url=['u'] * count,
        title=['T'] * count,
        text=texts(count, sentences=20),
    )


def mrpc(count):
    return parquet(
        sentence1=texts(count),
        sentence2=texts(count),
        label=[i % 2 for i in range(count)],
        idx=list(range(count)),
    )


def third_word(context):
    """An answer: a word, with the place where it begins."""
    word = context.split()[2]
    return {'text': [word], 'answer_start': [context.index(f' {word}') + 1]}


def squad(count):
    contexts = texts(count, sentences=3)
    return parquet(
        id=[f'q{i}' for i in range(count)],
        title=['T'] * count,
        context=contexts,
        question=[f'{text}?' for text in texts(count)],
        answers=[third_word(context) for context in contexts],
    )


def splits(folder, content, **num_rows):
    """The files of a data set with these numbers of rows in its splits."""
    files = {}
    for split, count in num_rows.items():
        files[f'{folder}/{split}-00000-of-00001.parquet'] = content(count)
    return files


@dataclasses.dataclass
class Home:
    """An empty home, and the environment of programs in it."""

    folder: Path
    environment: dict[str, str]

    def run(self, *commands):
        """What each of these commands printed, line by line; one process runs them."""
        cache = f'--config.data.dir={self.folder}/cache'
        said = run_modules([[*command, cache] for command in commands], ROOT, self.environment)
        return [text.splitlines()[1:] for text in said]


def result(lines):
    return json.loads(lines[-1].removeprefix('result '))


@pytest.fixture(scope='module')
def home(tmp_path_factory):
    """An empty home, for which the hub has a little text and two data sets."""
    folder = tmp_path_factory.mktemp('home')
    Hub.repositories = {
        'datasets/wikimedia/wikipedia': {
            '20231101.en/train-00000-of-00002.parquet': articles(60),
            '20231101.en/train-00001-of-00002.parquet': articles(60),
        },
        'datasets/nyu-mll/glue': splits('mrpc', mrpc, train=40, validation=8, test=8),
        'datasets/rajpurkar/squad': splits('plain_text', squad, train=40, validation=8),
    }
    with serving(str(folder / 'huggingface')) as environment:
        yield Home(folder, environment | {'HOME': str(folder), 'XLA_FLAGS': xla_flags(1)})


@pytest.fixture(scope='module')
def pretrained(home):
    """What pre-training on text by name printed; the hub then has the model as BERT-Base."""
    large = f'{home.folder}/large'
    (lines,) = home.run([
        'bert_jax.main', '--config=configs/large_pretrain.py', *TINY, f'--workdir={large}'])
    exported = home.folder / 'bert'
    convert.main([large, str(exported), '--to', 'huggingface'])
    Hub.repositories['google-bert/bert-base-uncased'] = {
        file.name: file.read_bytes() for file in exported.iterdir()}
    return lines


def test_text_comes_by_name(pretrained):
    assert result(pretrained)['step'] == 3


@pytest.fixture(scope='module')
def fine_tuned(home, pretrained):
    """What fine-tunings by name printed, by config; weights and data come by name."""
    configs = ('glue.py:mrpc', 'squad.py:v1')
    commands = [
        ['bert_jax.main', f'--config=configs/{config}', '--config.debug=True',
         f'--workdir={home.folder}/{config}'] for config in configs]
    return dict(zip(configs, home.run(*commands), strict=True))


@pytest.mark.parametrize('config, score', [
    ('glue.py:mrpc', 'eval/f1'),
    ('squad.py:v1', 'eval/exact_match'),
])
def test_weights_and_data_come_by_name(fine_tuned, config, score):
    lines = fine_tuned[config]
    assert lines[0] == 'training starts from the weights of hf:google-bert/bert-base-uncased'
    assert score in result(lines)


def test_a_folder_of_the_user_s_wins_over_a_name(home, fine_tuned):
    """The hub is not asked: the weights are in the cache."""
    offline = home.environment | {'HF_HUB_OFFLINE': '1'}
    done = run_program(
        '-m', 'bert_jax.main', '--config=configs/glue.py:mrpc', '--config.data.source=none',
        f'--workdir={home.folder}/none', **offline)
    assert done.returncode == 2
    assert 'no folder none/MRPC' in done.stderr
