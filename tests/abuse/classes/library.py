"""The library with arguments of other types and values: an InputError says what is wrong."""

import random
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import bert_jax
from bert_jax.config import default_config
from bert_jax.runtime.errors import InputError, visible
from tests.abuse.classes.case import NASTY, Case, copy, in_words

_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3.5, 1e30, float('nan'), 10**30, '', 'x', 'a\nb', '\x00',
    '\ud800', b'bytes', [], {}, (), set(),
    [1], ['a'], ('a', 'b'), [('a', 'b')], [['a', 'b']], [None], {'a': 1}, object(), len, int,
    np.array([1, 2]), np.array('x'),
    np.float32('nan'), range(3), iter(['a']), Path('x'), Path('/dev/null'), slice(None),
    Exception('x'), lambda: 3, 1j, 'x' * 5000)
_TEXTS: tuple[Any, ...] = (
    *_VALUES, 'a b', ['a b', 'c'], [('a', 'b'), 'c'], ['a'] * 300, ['a ' * 9000], ['\ud800'],
    ['a', 3], ['', 'a'], [' '],
    [('a',)], [('a', 'b', 'c')], [[]], [['a']], [[('a', 'b')], ['c']], np.array(['a', 'b']),
    {'a': 'b'}, 'a [MASK]', ['[MASK] ' * 40],
    [('a', None)], [NASTY[0]], [float('nan')], [b'a'], iter([('a', 'b')]), [np.str_('a')])


def _is_kind(error: BaseException) -> bool:
    """Whether an exception says what is wrong: an InputError, or a TypeError raised here."""
    if isinstance(error, InputError):
        return '\n' not in str(error)
    if not isinstance(error, TypeError):
        return False
    last = traceback.extract_tb(error.__traceback__)[-1]
    is_call = re.search('unexpected keyword argument|positional argument', str(error)) is not None
    return is_call or ('bert_jax' in last.filename and (last.line or '').startswith('raise'))


def _try(call: Callable[[], Any]) -> None:
    """Calls, and prints what came of it."""
    try:
        result = call()
        if hasattr(result, '__next__'):
            result = list(result)
        print('result', type(result).__name__)
    except Exception as error:
        if not _is_kind(error):
            raise
        print(visible(f'{type(error).__name__}: {error}'), file=sys.stderr)


def _some(rng: random.Random, values: tuple[Any, ...], **choices: Any) -> dict[str, Any]:
    """One or two of the keyword arguments, each with an odd value or with one of its own."""
    given = {}
    for name in rng.sample(sorted(choices), min(len(choices), rng.choice((1, 1, 2)))):
        given[name] = rng.choice((*values, *values, *choices[name]))
    return given


def _loading(rng: random.Random, folder: Path) -> Callable[[], Any]:
    path = rng.choice((str(folder / 'hf_pretraining'), str(folder / 'hf_classification'),
                       folder / 'hf_pretraining', str(folder / 'run')))
    if rng.random() < 0.25:
        path = rng.choice((*_VALUES, str(folder), str(folder / 'notes'), 'hf:a/b', 'gs://',
                           str(folder / 'run/checkpoints')))
    if rng.random() < 0.4:
        given = _some(rng, _VALUES, vocab_file=(str(folder / 'run/vocab.txt'),),
                      dtype=('float32', 'float16', 'bfloat16', np.float32))
        return lambda: bert_jax.load(path, **given)
    given = _some(
        rng, _VALUES, head=('classification', 'masked_lm', 'nope', 'encoder'),
        num_labels=(2, 10**9, np.int64(2)),
        labels=(['a', 'b'], ['a', 'a'], 'ab', {'a': 1}),
        vocab_file=(str(folder / 'run/vocab.txt'),), dtype=('float16', np.float32),
        remat=('full', 'x'), seed=(1, -1, 2**64, '1', 1.5))
    return lambda: bert_jax.from_pretrained(path, **given)


def _making(rng: random.Random, folder: Path) -> Callable[[], Any]:
    config = rng.choice((*_VALUES, 'tiny', 'tiny', 'tiny', 'L-1_H-8_A-2', 'L-0_H-8_A-2',
                         'L-1_H-9_A-2', 'L-1_H-8_A-0', 'L-9999999_H-8_A-1'))
    if rng.random() < 0.4:
        given = _some(
            rng, _VALUES, vocab_size=(30, -1), num_layers=(1, 0), hidden_size=(8, 7),
            num_heads=(2, 3), intermediate_size=(16,),
            hidden_act=('gelu', 'x'), layer_norm_eps=(1e-12, -1), max_position_embeddings=(16,),
            positions=('rotary', 'x'),
            dropout_rate=(0.1, 2.0), window=(3,), causal=(True,), type_vocab_size=(0, 2))
        options = {'vocab_size': 30, 'num_layers': 1, 'hidden_size': 8, 'num_heads': 2,
                   'intermediate_size': 16} | given
        return lambda: bert_jax.from_config(bert_jax.BertConfig(**options))
    given = _some(rng, _VALUES, head=('classification', 'x'), num_labels=(2,),
                  labels=(['a', 'b'],), vocab_size=(30, 10**12),
                  vocab_file=(str(folder / 'run/vocab.txt'),), seed=(2**70,))
    return lambda: bert_jax.from_config(config, **{'vocab_size': 30} | given)


def _predicting(rng: random.Random, folder: Path) -> Callable[[], Any]:
    name, method = rng.choice((
        ('hf_pretraining', 'fill_mask'), ('hf_pretraining', 'next_sentence'),
        ('hf_pretraining', 'score'), ('hf_pretraining', 'features'),
        ('hf_pretraining', 'vectors'), ('hf_classification', 'classify'),
        ('hf_question_answering', 'answer'), ('hf_classification', 'tag')))
    texts = rng.choice(_TEXTS)
    given = {}
    if rng.random() < 0.5:
        choices: dict[str, Any] = {
            'fill_mask': {'top_k': (1, 10**9)}, 'features': {'layers': ((-1,), (5,), 'x', ())},
            'answer': {'max_answer_length': (1,), 'null_threshold': (0.5,)},
            'vectors': {'pool': ('mean', 'x'), 'layer': (-1, 5, -99), 'normalize': (True, 'x'),
                        'windows': ('mean',)},
            'classify': {'windows': ('mean', 'x'), 'any_form': (True,)}}.get(method, {'nope': (1,)})
        given = _some(rng, _VALUES, **choices)
    if rng.random() < 0.2:
        method = f'iter_{method}'
    return lambda: getattr(bert_jax.load(folder / name), method)(texts, **given)


def _tokenizing(rng: random.Random, folder: Path) -> Callable[[], Any]:
    texts = rng.choice(_TEXTS)
    length = rng.choice((*_VALUES, 8, 16, 32, 10**9, np.int32(8)))
    method = rng.choice(('__call__', '__call__', 'pack'))

    def tokenize() -> Any:
        tokenizer = bert_jax.from_pretrained(folder / 'hf_pretraining').tokenizer
        return getattr(tokenizer, method)(texts, max_length=length)

    return tokenize


def _saving(rng: random.Random, folder: Path) -> Callable[[], Any]:
    target = rng.choice((*_VALUES, folder / 'new', folder / 'new', str(folder / 'notes'),
                         folder / 'text.txt', 'hf:a', 'gs://'))
    params: Any = rng.choice((None, None, {}, [], 3, {'bert': 3}, 'x',
                              {'bert': {'embeddings': np.zeros(3)}}))
    given = _some(rng, _VALUES, overwrite=(True,))
    return lambda: bert_jax.from_pretrained(folder / 'hf_pretraining').save(target, params, **given)


def _running(rng: random.Random, folder: Path) -> Callable[[], Any]:
    if rng.random() < 0.5:
        config = rng.choice((*_VALUES, 'tiny_pretrain', 'nope', 'glue:nope', 'glue:cola',
                             default_config()))
        changes = rng.choice((*_VALUES, {'train.steps': 'x'}, {'nope': 1}, {3: 4}, {'data': {}},
                              {'phases': 3}, {'train.steps': float('nan')},
                              {'data.source': None}, {'data.source': '/nope'}))
        workdir = rng.choice((*_VALUES, folder / 'notes', folder / 'text.txt', '/proc/1/x'))
        return lambda: bert_jax.train_run(config, workdir, changes)
    runs = rng.choice((*_VALUES, folder / 'notes', str(folder / 'run'), [folder / 'run'],
                       [folder / 'run', 3], folder / 'nope'))
    given = _some(rng, _VALUES, config=('glue:cola', 'x'),
                  changes=({'data.eval_source': 'x'}, {'x': 1}))
    workdir = rng.choice((*_VALUES, folder / 'new', folder / 'notes'))
    return lambda: bert_jax.evaluate_run(runs, workdir, **given)


_KINDS = (_loading, _loading, _making, _predicting, _predicting, _predicting, _tokenizing,
          _tokenizing, _saving, _running)


def draw(rng: random.Random, folder: Path, things: Path) -> Case:
    """A call with an argument or two of another type or value."""
    copy(things, folder, 'hf_pretraining', 'hf_classification', 'hf_question_answering', 'run',
         'notes', 'text.txt')
    kind = rng.choice(_KINDS)
    call = kind(rng, folder)
    values = [cell.cell_contents for cell in call.__closure__ or ()]
    shown = [repr(value)[:120] for value in values if value is not rng]
    return Case(done=f'{in_words(kind)} {shown}', act=lambda: _try(call))
