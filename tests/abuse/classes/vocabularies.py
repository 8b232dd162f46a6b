"""Vocabularies and tokenizers' files that an editor, a script or a hand has changed."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

from bert_jax.text.kinds import find_lowercase, load_tokenizer
from tests.abuse.classes.case import NASTY, Case, copy, in_words, write
from tests.abuse.classes.foreign import spoil_file
from tests.abuse.fuzz import cut, flip, overwrite
from tests.tokenizer_files import ALL_KINDS, write_tokenizer

_TEXTS = ('the leader was john smith', '', ' ', '\u200b', 'x' * 300, 'Ünïcödé 東京 हिन्दी', 'a\x00b',
          '[MASK] [CLS]', '\ud800', '\ufeff', '😀' * 40, 'ab ' * 3000, *NASTY[:12])
_SETTINGS = ('do_lower_case', 'cls_token', 'model_max_length', 'strip_accents', 'never_split',
             'tokenizer_class', 'mask_token', 'added_tokens_decoder', 'x')
_VALUES = (None, 3, -1, 1e30, 'x', [], {}, True, '[CLS]', '', ['a'], {'0': {'content': 'x'}},
           *NASTY[:9])


def _spoil_words(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """(A vocabulary of a token a line with a mistake, which)."""
    lines = data.split(b'\n')
    at = rng.randrange(len(lines))
    how = rng.choice((
        'bom', 'crlf', 'cr', 'twice', 'empty line', 'latin-1', 'utf-16', 'long line', 'many',
        'no special', 'half special', 'space', 'tab', 'nul', 'upper', 'sorted', 'cut', 'flip',
        'overwrite', 'empty', 'numbers', 'json', 'line separator', 'surrogate', 'no end',
        'many ends', 'html', 'one'))
    changed = {
        'bom': b'\xef\xbb\xbf' + data, 'crlf': data.replace(b'\n', b'\r\n'),
        'cr': data.replace(b'\n', b'\r'),
        'twice': data + data, 'latin-1': data + 'é\n'.encode('latin-1'),
        'utf-16': data.decode().encode('utf-16'),
        'nul': data.replace(b'\n', b'\0', 3), 'upper': data.upper(), 'empty': b'',
        'no end': data.rstrip(b'\n'),
        'many ends': data + b'\n' * 1000, 'html': b'<!DOCTYPE html><html>\n' + data,
        'one': b'[PAD]',
        'no special': data.replace(b'[MASK]', b'mask').replace(b'[CLS]', b'cls'),
        'half special': data.replace(rng.choice((b'[UNK]', b'[PAD]', b'[SEP]')), b'x'),
        'space': data.replace(b'\n', b' \n'), 'tab': data.replace(b'\n', b'\t1\n'),
        'many': data + b'\n'.join(
            b'w%d' % n for n in range(300_000)),
        'numbers': b'\n'.join(b'%d' % n for n in range(400)),
        'json': json.dumps(data.decode().split('\n')).encode(),
        'long line': data + b'x' * 1_000_000 + b'\n', 'surrogate': data + b'\xed\xa0\x80\n',
        'line separator': data + 'a\u2028b\n\x85\n\x0b\n\x1c'.encode(),
    }
    if how in changed:
        return changed[how], how
    if how == 'empty line':
        lines.insert(at, rng.choice((b'', b' ', b'\xc2\xa0')))
    elif how == 'sorted':
        lines.sort()
    else:
        return {'cut': cut, 'flip': flip, 'overwrite': overwrite}[how](rng, data), how
    return b'\n'.join(lines), how


def _spoil(rng: random.Random, path: Path) -> str:
    if path.suffix == '.json' and rng.random() < 0.8:
        return spoil_file(rng, path)
    data = path.read_bytes()
    if path.suffix == '.model' or path.suffix == '.json':
        how = rng.choice((flip, cut, overwrite))
        path.write_bytes(how(rng, data))
        return in_words(how)
    new, how = _spoil_words(rng, data)
    path.write_bytes(new)
    return how


def _encode(path: Path, texts: list[str]) -> None:
    lowercase, _ = find_lowercase(path)
    tokenizer = load_tokenizer(path, lowercase)
    size = len(tokenizer.vocab)
    for text in texts:
        ids: Any = tokenizer.encode(text)
        assert all(0 <= i < size for i in ids), ids


def make(folder: Path) -> None:
    """Makes a tokenizer of each kind."""
    for kind in ALL_KINDS:
        write_tokenizer(kind, folder / kind)


def draw(rng: random.Random, folder: Path, things: Path) -> Case:
    """A tokenizer's file that is spoiled, and what reads it."""
    kind = rng.choice(('wordpiece', 'wordpiece', 'wordpiece', *ALL_KINDS))
    shutil.copytree(things / 'tokenizers' / kind, folder / 'tokenizer')
    path = next(path for path in sorted((folder / 'tokenizer').iterdir())
                if path.suffix in ('.txt', '.model', '.json', '.letters', '.kmers'))
    done = _spoil(rng, path)
    beside = ''
    if rng.random() < 0.25:
        beside = rng.choice(('tokenizer_config.json', 'special_tokens_map.json',
                             'added_tokens.json'))
        write(folder / 'tokenizer' / beside, {rng.choice(_SETTINGS): rng.choice(_VALUES)})
    if rng.random() < 0.75:
        texts = rng.sample(_TEXTS, 4)
        return Case(done=f'{kind} {done} {beside} {texts!r:.200}', act=lambda: _encode(path, texts))
    copy(things, folder, 'hf_pretraining')
    act = rng.choice((
        f'predict fill-mask --model {folder}/hf_pretraining --vocab-file {path} "a [MASK]"',
        f'main @text --config.data.source={things}/text.txt --config.data.vocab_file={path}'))
    return Case(done=f'{kind} {done} {beside}', act=act, made=('new', 'cache'))
