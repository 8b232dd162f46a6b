"""Compares a tokenizer.json with the other vocabulary files in its folder.

transformers reads only the tokenizer.json. If somebody has changed another file, or has put the
files of two models together, the others have no effect, and a note says so.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sentencepiece

from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.files import Path, children, exists, read_json
from bert_jax.text.settings import TOKENIZER_FILE
from bert_jax.text.vocab import is_unused
from bert_jax.text.vocab_files import read_file, read_lines

_Compare = Callable[[Path, Mapping[str, Any]], str]


def differing(folder: Path, tokenizer: Mapping[str, Any]) -> list[str]:
    """The names of the folder's files with another vocabulary than its tokenizer.json; notes each.

    Args:
      folder: of the files.
      tokenizer: the content of the tokenizer.json.
    """
    names = []
    for path, compare in _copies(folder):
        difference = compare(path, tokenizer)
        if difference:
            names.append(path.name)
            tell_once(f'note: {folder}: {path.name} and {TOKENIZER_FILE} differ ({difference}): '
                      f'{TOKENIZER_FILE} counts, as in transformers')
    return names


def _copies(folder: Path) -> list[tuple[Path, _Compare]]:
    """The folder's other files with a vocabulary, each with the function that compares it."""
    compared: Mapping[str, _Compare] = {
        'vocab.txt': _compare_lines, 'vocab.json': _compare_pieces, 'merges.txt': _compare_merges}
    found = []
    for name, compare in compared.items():
        if exists(folder / name):
            found.append((folder / name, compare))
    for path in children(folder):
        if path.suffix == '.model' and exists(path):
            found.append((path, _compare_model))
    return found


def _compare_lines(path: Path, tokenizer: Mapping[str, Any]) -> str:
    """How a file with one token a line differs from a tokenizer.json; '' if it does not."""
    try:
        lines = read_lines(path)
    except InputError as error:
        return str(error)
    return _compare_ids({line.strip(): number for number, line in enumerate(lines)}, tokenizer)


def _compare_pieces(path: Path, tokenizer: Mapping[str, Any]) -> str:
    """How a file of tokens with their ids differs from a tokenizer.json; '' if it does not."""
    try:
        pieces = read_json(path, 'it is the vocabulary')
    except InputError as error:
        return str(error)
    return _compare_ids({token.strip(): number for token, number in pieces.items()}, tokenizer)


def _compare_ids(ids: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> str:
    """How tokens with their ids differ from a tokenizer.json; '' if they do not.

    Names of unused rows do not count, nor do tokens of white space, which no text has.
    """
    pieces = _ids_of_pieces(tokenizer)
    if pieces is None:
        return ''
    all_ids = pieces | _ids_of_added(tokenizer)
    others = []
    for token in {**ids, **pieces}:
        counts = token and not is_unused(token)
        if counts and ids.get(token) != all_ids.get(token):
            others.append(token)
    if not others:
        return ''
    token = others[0]
    return (f'{len(others):,} tokens have other ids, such as {token!r:.40}, '
            f'{ids.get(token, "none")} and {all_ids.get(token, "none")}')


def _compare_merges(path: Path, tokenizer: Mapping[str, Any]) -> str:
    """How a file of BPE merges differs from a tokenizer.json; '' if it does not."""
    model = tokenizer.get('model')
    theirs = model.get('merges') if isinstance(model, Mapping) else None
    if not isinstance(theirs, list):
        return ''
    try:
        lines = read_lines(path, 'merges', 'the model')
    except InputError as error:
        return str(error)
    merges = [line for line in lines if line and not line.startswith('#version')]
    wanted = []
    for merge in theirs:
        wanted.append(' '.join(map(str, merge)) if isinstance(merge, list) else str(merge))
    if merges == wanted:
        return ''
    for number, (merge, other) in enumerate(zip(merges, wanted, strict=False), 1):
        if merge != other:
            return f'merge {number} is {merge!r:.40} and {other!r:.40}'
    return f'{len(merges):,} merges and {len(wanted):,}'


def _compare_model(path: Path, tokenizer: Mapping[str, Any]) -> str:
    """How a SentencePiece model's pieces differ from a tokenizer.json; '' if they do not.

    Ids are not compared: models number the special tokens otherwise than their SentencePiece file.
    """
    pieces = _ids_of_pieces(tokenizer)
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(read_file(path, 'SentencePiece model', 'the model'))
    except (RuntimeError, OSError, InputError):
        return f'{path.name} is damaged'
    if pieces is None:
        return ''
    known = pieces | _ids_of_added(tokenizer)
    missing = []
    for i in range(processor.GetPieceSize()):
        if processor.IsControl(i) or processor.IsUnknown(i) or processor.IsUnused(i):
            continue
        piece = processor.IdToPiece(i)
        if piece.strip() not in known:
            missing.append(piece)
    if not missing:
        return ''
    return f'{len(missing):,} pieces are in {path.name} alone, such as {missing[0]!r:.40}'


def _ids_of_pieces(tokenizer: Mapping[str, Any]) -> dict[str, Any] | None:
    """The pieces of a tokenizer.json with their ids; None if they cannot be read."""
    model = tokenizer.get('model')
    pieces = model.get('vocab') if isinstance(model, Mapping) else None
    if isinstance(pieces, Mapping):
        return {token.strip(): number for token, number in pieces.items()}
    if _is_scored(pieces):
        assert isinstance(pieces, Sequence)
        return {piece[0].strip(): number for number, piece in enumerate(pieces)}
    return None


def _is_scored(pieces: Any) -> bool:
    """Whether a value from a file is a list of (piece, score) pairs, as Unigram models have it."""
    if not isinstance(pieces, list) or not pieces:
        return False
    return all(isinstance(piece, list) and piece and isinstance(piece[0], str) for piece in pieces)


def _ids_of_added(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """The added tokens of a tokenizer.json with their ids, as far as they can be read."""
    listed = tokenizer.get('added_tokens')
    ids = {}
    for token in listed if isinstance(listed, list) else ():
        if isinstance(token, Mapping) and isinstance(token.get('content'), str):
            ids[token['content'].strip()] = token.get('id')
    return ids
