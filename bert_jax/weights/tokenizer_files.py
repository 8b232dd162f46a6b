"""The tokenizer of a Hugging Face folder: `vocab.txt`, `tokenizer_config.json` and the like."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import Any

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, children
from bert_jax.text.load import (
    SWITCHES_FILE,
    read_switches,
    switches_of,
    write_switches,
)
from bert_jax.text.vocab import (
    CLS,
    CONTINUATION,
    MASK,
    PAD,
    SEP,
    SPECIAL_TOKENS,
    UNK,
    write_vocab,
)
from bert_jax.text.wordpiece import ORIGINAL, Switches
from bert_jax.weights.formats import (
    Weights,
    check_vocabulary,
    looks_lowercase,
    read_json,
    read_vocabulary,
    whole_vocabulary,
    write_json,
)


def read_tokenizer(folder: Path, vocab_size: int) -> tuple[Path | None, bool]:
    """(vocabulary file, whether it is of lower-cased text).

    Raises:
      InputError: the vocabulary cannot be read, or is of another size than the embedding.
    """
    fields: dict[str, Any] = {}
    tokenizer_config = folder / SWITCHES_FILE
    if tokenizer_config.exists():
        fields = read_json(tokenizer_config, 'it describes the tokenizer')
    models = [child for child in children(folder) if child.suffix == '.model']
    path = next((p for p in (folder / 'vocab.txt', *models) if p.exists()), None)
    tokenizer_file = folder / 'tokenizer.json'
    tokens = None
    if (path is None or path.name == 'vocab.txt') and tokenizer_file.exists():
        tokenizer = read_json(tokenizer_file, 'it describes the tokenizer')
        tokens = _tokens(tokenizer, tokenizer_file)
        if fields.get('tokenizer_class') not in ('BertTokenizer', 'BertTokenizerFast'):
            fields = fields | _normalizer_fields(tokenizer, tokenizer_file)
    switches = switches_of(fields, tokenizer_config)
    if path is None and tokens is not None:
        path = _kept_vocabulary(tokens, switches)
    elif path is not None and path.name == 'vocab.txt' and switches != read_switches(path):
        path = _kept_vocabulary(read_vocabulary(path, lowercase=True).tokens, switches)
    lowercase = fields.get('do_lower_case')
    if path is None:
        return None, lowercase is not False
    vocab = read_vocabulary(path, lowercase=True)
    check_vocabulary(vocab, path, vocab_size)
    return path, looks_lowercase(vocab) if lowercase is None else bool(lowercase)


def _normalizer_fields(tokenizer: dict[str, Any], where: Path) -> dict[str, Any]:
    """What the normalizer of a tokenizer.json says, by the names of tokenizer_config.json.

    transformers goes by it unless tokenizer_config.json names the class BertTokenizer, which makes
    its normalizer from that file's fields alone.
    """
    normalizer = tokenizer.get('normalizer')
    if not isinstance(normalizer, dict) or normalizer.get('type') != 'BertNormalizer':
        print(f'note: {where} has a normalizer that is not BertNormalizer, which is read as one: '
              'compare some ids', file=sys.stderr)
        return {}
    return {'do_lower_case': normalizer.get('lowercase'),
            'strip_accents': normalizer.get('strip_accents'),
            'tokenize_chinese_chars': normalizer.get('handle_chinese_chars', True)}


def _tokens(tokenizer: dict[str, Any], tokenizer_file: Path) -> list[str] | None:
    """The vocabulary of a `tokenizer.json`; None where it is no WordPiece."""
    try:
        model = tokenizer['model']
        if model.get('type', 'WordPiece') != 'WordPiece':
            return None
        added = {token['content']: token['id'] for token in tokenizer.get('added_tokens') or ()}
        ids = model['vocab'] | added
        tokens = sorted(ids, key=ids.__getitem__)
    except (AttributeError, KeyError, TypeError):
        raise InputError(f'{tokenizer_file} is no tokenizer file: download it again') from None
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise InputError(f'{tokenizer_file}: ids of the vocabulary are not 0, 1, 2, ...')
    return tokens


def _kept_vocabulary(tokens: Sequence[str], switches: Switches) -> Path:
    """A vocabulary as a file of its own, kept by its content in the cache of this project.

    transformers 5 writes no vocab.txt any more. Where the tokenizer has switches, the file is
    called vocab.txt and has them beside it.
    """
    content = '\n'.join(tokens) + ('' if switches == ORIGINAL else repr(switches))
    name = hashlib.sha256(content.encode()).hexdigest()[:32]
    folder = as_path('~/.cache/bert_jax/vocabularies')
    path = folder / f'{name}.txt' if switches == ORIGINAL else folder / name / 'vocab.txt'
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_switches(path.parent, switches)
            write_vocab(path, tokens)
        except OSError as error:
            raise InputError(f'{path} cannot be written: {error.strerror}') from error
    return path


def write_tokenizer(folder: Path, weights: Weights) -> list[str]:
    """Writes what `AutoTokenizer` loads; what is to be known about it, a line each."""
    if weights.vocab_file is None:
        return ['no tokenizer files: there is no vocabulary']
    if weights.vocab_file.suffix == '.model':
        (folder / 'vocab.model').write_bytes(weights.vocab_file.read_bytes())
        return ['no tokenizer files: BertTokenizer is WordPiece, and the vocabulary is a '
                'SentencePiece model (copied as vocab.model)']
    tokens = whole_vocabulary(weights)
    write_vocab(folder / 'vocab.txt', tokens)
    switches = read_switches(weights.vocab_file)
    write_json(folder / 'tokenizer.json', fast_tokenizer(tokens, weights.lowercase, switches))
    more: dict[str, Any] = {'strip_accents': switches.strip_accents,
                            'tokenize_chinese_chars': switches.tokenize_chinese_chars}
    if not switches.do_basic_tokenize:
        more['do_basic_tokenize'] = False
    if switches.never_split:
        more['never_split'] = list(switches.never_split)
    write_json(folder / SWITCHES_FILE, {
        'tokenizer_class': 'BertTokenizer', 'do_lower_case': weights.lowercase,
        'model_max_length': weights.model['max_position_embeddings'], **more, 'pad_token': PAD,
        'unk_token': UNK, 'cls_token': CLS, 'sep_token': SEP, 'mask_token': MASK,
    })
    if switches.do_basic_tokenize and not switches.never_split:
        return []
    return ["the tokenizer has do_basic_tokenize=False or never_split, which transformers' slow "
            'tokenizer alone knows: load it with use_fast=False']


def fast_tokenizer(tokens: Sequence[str], lowercase: bool, switches: Switches) -> dict[str, Any]:
    """What the `tokenizers` library runs; words of up to 200 characters are cut, as the original's
    (and ours), and not 100."""
    ids = {token: i for i, token in enumerate(tokens)}
    special = sorted(SPECIAL_TOKENS, key=ids.__getitem__)

    def frame(*parts: str) -> list[dict[str, Any]]:
        return [
            {'Sequence' if part in 'AB' else 'SpecialToken': {'id': part, 'type_id': number}}
            for number, text in enumerate(parts) for part in text.split()
        ]

    return {
        'version': '1.0', 'truncation': None, 'padding': None,
        'added_tokens': [
            {'id': ids[token], 'content': token, 'single_word': False, 'lstrip': False,
             'rstrip': False, 'normalized': False, 'special': True}
            for token in special
        ],
        'normalizer': {
            'type': 'BertNormalizer', 'clean_text': True,
            'handle_chinese_chars': switches.tokenize_chinese_chars,
            'strip_accents': switches.strip_accents, 'lowercase': lowercase,
        },
        'pre_tokenizer': {'type': 'BertPreTokenizer'},
        'post_processor': {
            'type': 'TemplateProcessing', 'single': frame(f'{CLS} A {SEP}'),
            'pair': frame(f'{CLS} A {SEP}', f'B {SEP}'),
            'special_tokens': {
                token: {'id': token, 'ids': [ids[token]], 'tokens': [token]} for token in (CLS, SEP)
            },
        },
        'decoder': {'type': 'WordPiece', 'prefix': CONTINUATION, 'cleanup': True},
        'model': {
            'type': 'WordPiece', 'unk_token': UNK, 'continuing_subword_prefix': CONTINUATION,
            'max_input_chars_per_word': 200, 'vocab': ids,
        },
    }
