"""Programs of docs/library.md and README.md run as they are, a tiny model in BERT-Base's place."""

import functools
import re
from unittest import mock

import jax
import numpy as np
import pytest
from flax import linen as nn

import bert_jax
from bert_jax.api.modules import BertModule
from bert_jax.text.vocab import SPECIAL_TOKENS
from bert_jax.text.vocab_files import write_vocab
from bert_jax.watch import metrics_log
from tests.conftest import ROOT
from tests.numpy_kernels import kernels_of_numpy  # noqa: F401
from tests.shared_steps import shared_steps
from tests.tiny_runs import one_device

PAGE = (ROOT / 'docs' / 'library.md').read_text()
PUBLISHED = 'hf:google-bert/bert-base-uncased'
# The headings of the programs, and what they are about; the programs follow them.
HEADINGS = (
    'A fine-tuning loop',
    'An encoder inside a module of your own',
    'A frozen encoder, and many classifiers on it by `vmap`',
    'Two devices',
    'Attention',
)
WORDS = (
    'a', 'fine', 'dull', 'film', 'acting', 'and', 'far', 'too', 'long', 'cat', 'the', 'is', 'it',
    'sleeps', 'asleep', 'rains', 'shop', 'closed', 'text', 'its', 'pair')


def program_under(heading):
    """The Python of the first block under a heading."""
    section = PAGE.split(f'## {heading}\n')[1].split('\n## ')[0]
    return re.search(r'```python\n(.*?)```', section, re.DOTALL)[1]


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    """A folder with a tiny encoder that knows the words of the programs."""
    folder = tmp_path_factory.mktemp('tiny')
    write_vocab(folder / 'vocab.txt', (*SPECIAL_TOKENS, *WORDS))
    bert = bert_jax.from_config('L-1_H-8_A-2', 'encoder', vocab_file=folder / 'vocab.txt')
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: x + rng.normal(0, 0.3, x.shape), jax.device_get(bert.params))
    bert.save(folder / 'model', params)
    return folder / 'model'


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:.*starts fresh')
@pytest.mark.parametrize('heading', HEADINGS)
def test_a_program_of_the_page(heading, tiny, tmp_path, monkeypatch, capsys):
    program = program_under(heading)
    assert PUBLISHED in program
    if heading == 'Attention':
        monkeypatch.setattr(BertModule, 'apply', apply_compiled)
    monkeypatch.chdir(tmp_path)
    exec(compile(program.replace(PUBLISHED, str(tiny)), heading, 'exec'), {'__name__': heading})
    said = capsys.readouterr().out
    assert said and 'nan' not in said
    if heading == HEADINGS[0]:
        assert len(re.findall('loss', said)) == 3
        assert "'label':" in said
        assert len(program.split('BATCH_SIZE = 16\n')[1].strip().splitlines()) <= 40
    if heading == HEADINGS[3]:
        assert said.count('on 2 devices') == 3


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:.*starts fresh')
def test_the_six_lines_of_the_readme(tiny, capsys):
    readme = (ROOT / 'README.md').read_text()
    program = re.search(r'```python\n(.*?)```', readme, re.DOTALL)[1]
    imports, lines = program.split('\n\n')
    assert len(lines.splitlines()) == 6
    names = {'__name__': 'readme'}
    exec(compile(program.replace(PUBLISHED, str(tiny)), 'README.md', 'exec'), names)
    assert capsys.readouterr().out.count('[[') == 2
    before, after = (names['predict'](params)[0, 1] for params in (
        names['bert'].params, names['params']))
    assert after > before


def test_the_reference_lists_what_is_public():
    page = (ROOT / 'docs' / 'reference' / 'python.md').read_text()
    for name in bert_jax.__all__:
        assert f'::: bert_jax.{name}\n' in page
        assert re.search(rf'bert_jax\.{name}[( )]', page), name


def apply_compiled(module, variables, *args, **kwargs):
    """`apply` as one program: operation by operation, it is fifty."""
    asked = {name: kwargs.pop(name) for name in list(kwargs) if kwargs[name] is True}
    apply = functools.partial(nn.Module.apply, module, **asked)
    return jax.jit(apply)(variables, *args, **kwargs)


@pytest.mark.slow
@pytest.mark.usefixtures('kernels_of_numpy')
def test_the_examples_of_the_reference(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / 'docs' / 'reference' / 'python.md').read_text()
    names = {'__name__': 'reference'}
    no_curves = mock.patch.object(metrics_log, 'curves', lambda *_: None)
    compiled = mock.patch.object(BertModule, 'apply', apply_compiled)
    with one_device(), shared_steps(), no_curves, compiled:
        for program in re.findall(r'```python\n(.*?)```', page, re.DOTALL):
            exec(program, names)
    said = capsys.readouterr().out
    assert 'enormous' in said and "{'optimizer.learning_rate': " in said
