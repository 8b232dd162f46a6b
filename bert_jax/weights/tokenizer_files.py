"""The tokenizer of a Hugging Face folder: `vocab.txt`, `tokenizer_config.json` and the like."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, children
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
from bert_jax.weights.description import (
    Weights,
    check_vocabulary,
    looks_lowercase,
    read_vocabulary,
    whole_vocabulary,
)
from bert_jax.weights.folder import write_json
from bert_jax.weights.reading import read_json


def read_tokenizer(folder: Path, vocab_size: int) -> tuple[Path | None, bool]:
    """(vocabulary file, whether it is of lower-cased text).

    Raises:
      InputError: the vocabulary cannot be read, or is of another size than the embedding.
    """
    said = None
    tokenizer_config = folder / 'tokenizer_config.json'
    if tokenizer_config.exists():
        said = read_json(tokenizer_config, 'it describes the tokenizer').get('do_lower_case')
    models = [child for child in children(folder) if child.suffix == '.model']
    path = next((p for p in (folder / 'vocab.txt', *models) if p.exists()), None)
    tokenizer_file = folder / 'tokenizer.json'
    if path is None and tokenizer_file.exists():
        path = _kept_vocabulary(tokenizer_file)
    if path is None:
        return None, said is not False
    vocab = read_vocabulary(path, lowercase=True)
    check_vocabulary(vocab, path, vocab_size)
    return path, looks_lowercase(vocab) if said is None else bool(said)


def _kept_vocabulary(tokenizer_file: Path) -> Path | None:
    """The vocabulary of a `tokenizer.json` as a file of its own.

    transformers 5 writes no vocab.txt any more. The file is kept by its contents in the cache of
    this project. None where the tokenizer is no WordPiece.
    """
    tokenizer = read_json(tokenizer_file, 'it describes the tokenizer')
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
    name = hashlib.sha256('\n'.join(tokens).encode()).hexdigest()[:32]
    path = as_path('~/.cache/bert_jax/vocabularies') / f'{name}.txt'
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
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
    write_json(folder / 'tokenizer.json', _fast_tokenizer(tokens, weights.lowercase))
    write_json(folder / 'tokenizer_config.json', {
        'tokenizer_class': 'BertTokenizer', 'do_lower_case': weights.lowercase,
        'model_max_length': weights.model['max_position_embeddings'],
        'strip_accents': None, 'tokenize_chinese_chars': True, 'pad_token': PAD,
        'unk_token': UNK, 'cls_token': CLS, 'sep_token': SEP, 'mask_token': MASK,
    })
    return []


def _fast_tokenizer(tokens: Sequence[str], lowercase: bool) -> dict[str, Any]:
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
            'type': 'BertNormalizer', 'clean_text': True, 'handle_chinese_chars': True,
            'strip_accents': None, 'lowercase': lowercase,
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
