"""docs/your_language.md: every command, from the dump to the hub, on a small Hindi Wikipedia.

The commands and files are the page's own. What the test adds: a stand-in for the servers of
Wikipedia and of the hub, and, by the command that they are for, flags that make the model tiny.
"""

import contextlib
import functools
import http.server
import io
import json
import random
import re
import shlex
import shutil
import subprocess
import threading
from pathlib import Path
from string import Template

import pytest

from tests import small_hindi
from tests.conftest import ROOT, xla_flags
from tests.programs import run_modules
from tests.stand_in_hub import Hub, serving

pytestmark = pytest.mark.slow
pytest.importorskip('mwparserfromhell', reason='dumps need it')

PAGE = (ROOT / 'docs' / 'your_language.md').read_text()
WIKIPEDIA = 'https://dumps.wikimedia.org'
DUMP = 'hiwiki/latest/hiwiki-latest-pages-articles.xml.bz2'
UPOS = sorted({entry.split('/')[1] for text in small_hindi.SENTENCES for entry in text.split()})
TINY_MODEL = [
    '--config.model.num_layers=1',
    '--config.model.hidden_size=16',
    '--config.model.num_heads=2',
    '--config.model.intermediate_size=32',
    '--config.data.vocab_size=400',
    '--config.data.held_out=0.1',
    "--config.phases=({'steps': 4, 'max_seq_length': 32},)",
    '--config.train.steps=4',
    '--config.train.batch_size=8',
    '--config.train.eval_batch_size=8',
    '--config.train.max_eval_examples=8',
]
SHORT = ['--config.debug=True', '--config.data.max_seq_length=32']
# Further arguments, by a part of the command that they are for.
ADDED = {
    'tools.look': ['--vocab_sizes=200,400'],
    'tools.prepare': TINY_MODEL,
    'main --config=hindi.py': TINY_MODEL,
    'main --config=configs/tagging.py': SHORT,
    'main --config=configs/classification.py': SHORT,
}


def blocks():
    """(Language, title, content) of each block of code, in the page's order."""
    fences = re.findall(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE)
    assert {language for language, _, _ in fences} == {'python', 'bash', 'markdown', 'text'}
    return fences


def files():
    """The files that the page shows, by name."""
    return {title: content for _, title, content in blocks() if title}


def commands():
    """The words of the page's commands, in its order, with what the shell puts for variables."""
    found = []
    variables = {}
    for language, _, content in blocks():
        if language != 'bash':
            continue
        for line in re.sub(r'\\\n\s*', ' ', content).splitlines():
            words = shlex.split(Template(line).substitute(variables))
            name, is_assignment, value = words[0].partition('=')
            if is_assignment:
                variables[name] = value
            else:
                found.append(words)
    return found


def parquet(names, **columns):
    """A Parquet file with a column of classes, as the hub's converter writes it."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table(columns)
    info = {'info': {'features': names}}
    file = io.BytesIO()
    parquet.write_table(table.replace_schema_metadata({'huggingface': json.dumps(info)}), file)
    return file.getvalue()


def treebank(rng, count):
    sentences = [small_hindi.tagged_sentence(rng) for _ in range(count)]
    return parquet(
        {'upos': {'feature': {'_type': 'ClassLabel', 'names': UPOS}}},
        idx=[str(number) for number in range(count)],
        text=[' '.join(words) for words, _ in sentences],
        tokens=[words for words, _ in sentences],
        upos=[[UPOS.index(tag) for tag in tags] for _, tags in sentences])


def opinions(rng, count):
    names = ['negative', 'positive']
    rows = [small_hindi.opinion(rng) for _ in range(count)]
    return parquet(
        {'label': {'_type': 'ClassLabel', 'names': names}},
        text=[text for text, _ in rows],
        label=[names.index(label) for _, label in rows])


def splits(folder, content, rng, **num_rows):
    return {f'{folder}/{split}/0000.parquet': content(rng, count)
            for split, count in num_rows.items()}


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and keeps no log."""

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def wikipedia(folder: Path):
    """The address of a server of the files in a folder."""
    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f'http://127.0.0.1:{server.server_port}'
    finally:
        server.shutdown()


@pytest.fixture(scope='module')
def servers(tmp_path_factory):
    """The environment in which commands find the stand-ins, and Wikipedia's address."""
    folder = tmp_path_factory.mktemp('servers')
    rng = random.Random(0)
    (folder / DUMP).parent.mkdir(parents=True)
    small_hindi.write_dump(folder / DUMP, [small_hindi.article(rng, 30) for _ in range(60)])
    Hub.repositories = {
        'datasets/universal-dependencies/universal_dependencies': splits(
            'hi_hdtb', treebank, rng, train=80, validation=20, test=20),
        'datasets/cardiffnlp/tweet_sentiment_multilingual': splits(
            'hindi', opinions, rng, train=80, validation=20)}
    with serving(str(folder / 'huggingface')) as environment, wikipedia(folder) as address:
        yield environment | {'HOME': str(folder), 'HF_TOKEN': 'may write'}, address


def with_added(words):
    """A command's module and arguments, with those that make it small."""
    command = ' '.join(words)
    assert words[:2] == ['python', '-m'], command
    arguments = words[2:]
    for part, added in ADDED.items():
        if f'bert_jax.{part}' in command:
            arguments = arguments + added
    return arguments


@pytest.fixture(scope='module')
def page(servers, tmp_path_factory):
    """A folder with the files of the page and the dump, and the environment of its commands."""
    environment, address = servers
    folder = tmp_path_factory.mktemp('page')
    for name, content in files().items():
        (folder / name).write_text(content)
    (download,) = [words for words in commands() if words[0] != 'python']
    assert download[0] == 'curl'
    if shutil.which('curl') is None:
        pytest.skip('the page downloads with curl, which is not installed')
    subprocess.run([word.replace(WIKIPEDIA, address) for word in download], cwd=folder, check=True,
                   capture_output=True)
    return folder, environment | {'XLA_FLAGS': xla_flags(1)}


def test_the_page_from_text_to_hub(page):
    folder, environment = page
    wanted = [with_added(words) for words in commands() if words[0] == 'python']
    wanted = [words for words in wanted if words[0] != 'bert_jax.tools.preflight']
    said = run_modules(wanted, folder, environment)
    of = {name: [text for text in said if text.startswith(f'bert_jax.{name} ')]
          for name in ('tools.look', 'tools.prepare', 'main', 'evaluate', 'predict', 'convert')}

    assert 'letters are Devanagari 100.0%; 0.0% of them are capitals' in of['tools.look'][0]
    assert 'warning' not in of['tools.look'][0]
    assert '60 documents (0 duplicates left out)' in of['tools.prepare'][0]
    assert '0.00% of the tokens are [UNK]' in of['tools.prepare'][0]
    results = [json.loads(text.split('result ')[1]) for text in of['main']]
    assert results[0]['step'] == 4 and 'eval/mlm_loss' in results[0]
    assert 0 <= results[1]['eval/accuracy'] <= 1
    assert 0 <= results[2]['eval/macro_f1'] <= 1
    assert 'eval/accuracy' in of['evaluate'][0].split('result ')[1]
    for text in of['predict']:
        assert 'error' not in json.loads(text.splitlines()[1]), text
    assert (folder / 'hindi.html').exists() and (folder / 'runs/hindi/curves.png').exists()

    published = Hub.repositories['ORG/bert-hindi']
    card = published['README.md'].decode()
    assert '\nlanguage: hi\nlicense: cc-by-sa-4.0\n---\n' in card
    assert card == (folder / 'hindi_hf/README.md').read_text()
    assert 'गाँव' in published['vocab.txt'].decode()
    # The last command asks the hub's model what the first asked the run.
    first, last = (text.splitlines()[1] for text in (of['predict'][0], of['predict'][-1]))
    assert json.loads(first)['predictions'] == json.loads(last)['predictions']


@pytest.mark.extras
def test_the_preflight_of_the_page(page):
    pytest.importorskip('libtpu')
    folder, environment = page
    (words,) = [words for words in commands() if 'bert_jax.tools.preflight' in words]
    smaller = [word.replace(',v5e:4x4', '') for word in words]
    (said,) = run_modules([[*with_added(smaller), *TINY_MODEL]], folder, environment)
    assert re.search(r'v5e:2x2: fits, .* (hours|minutes), .* chip-hours, \$', said)
