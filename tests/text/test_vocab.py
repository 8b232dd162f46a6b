"""Vocabulary files: ids, special tokens, and one clear line for each thing that can be wrong."""

import pickle

import numpy as np
import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab, write_vocab


def _write(tmp_path, data):
    path = tmp_path / "vocab.txt"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def special_ids(vocab):
    return vocab.pad_id, vocab.unk_id, vocab.cls_id, vocab.sep_id, vocab.mask_id


def test_ids_follow_lines(tmp_path):
    # A line of white space keeps its id, as in Google's load_vocab: a key that no text can match.
    path = _write(tmp_path, "[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\n\u00a0\na\u3000\na\n##a\n##\nb\n")
    vocab = Vocab.from_file(path)
    assert len(vocab) == 11 and special_ids(vocab) == (3, 0, 1, 2, 4)
    assert vocab.id("a") == 7 and vocab.id("b") == 10 and "##a" in vocab and "c" not in vocab
    np.testing.assert_array_equal(np.flatnonzero(vocab.is_continuation), [8])
    assert vocab.is_continuation.dtype == np.bool_


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_line_ends_do_not_matter(tmp_path, end):
    lines = [*SPECIAL_TOKENS, "a"]
    path = _write(tmp_path, (end or "\n").join(lines) + end)
    assert Vocab.from_file(path).tokens == tuple(lines)


def test_write_then_read(tmp_path):
    path = tmp_path / "new.txt"
    tokens = [*SPECIAL_TOKENS, "é", "##\u2028x"]
    write_vocab(path, tokens)
    assert Vocab.from_file(path).tokens == tuple(tokens)
    assert [p.name for p in tmp_path.iterdir()] == ["new.txt"]


def test_fingerprint_sees_every_token_and_its_place():
    base = [*SPECIAL_TOKENS, "a", "b"]
    variants = [base, [*base, "c"], [*SPECIAL_TOKENS, "b", "a"], [*SPECIAL_TOKENS, "ab"]]
    assert len({Vocab.from_tokens(v).fingerprint for v in variants}) == len(variants)
    assert Vocab.from_tokens(base).fingerprint == Vocab.from_tokens(tuple(base)).fingerprint


def test_pickle_keeps_everything():
    vocab = Vocab.from_tokens([*SPECIAL_TOKENS, "##a"])
    copy = pickle.loads(pickle.dumps(vocab))
    assert copy.tokens == vocab.tokens and copy.id("##a") == 5 and copy.mask_id == vocab.mask_id
    assert copy.fingerprint == vocab.fingerprint


SPECIAL_LINES = "\n".join(SPECIAL_TOKENS).encode() + b"\n"


@pytest.mark.parametrize(("data", "words"), [
    (b"", ["empty"]), (b"\n\n", ["empty"]),
    (SPECIAL_LINES + b"a\nb\na\n", ["line 8", "'a'", "line 6"]),
    (SPECIAL_LINES.replace(b"[MASK]\n", b""), ["[MASK]", "missing"]),
    (SPECIAL_LINES.replace(b"[PAD]", b"<pad>"), ["[PAD]", "missing"]),
    (SPECIAL_LINES + b"caf\xe9\n", ["line 6", "0xe9", "offset 34", "UTF-8"]),
    (b"\x0a\x00\x01" + SPECIAL_LINES, ["not a text file", "offset 1"]),
])
def test_bad_files_are_named(tmp_path, data, words):
    path = _write(tmp_path, data)
    with pytest.raises(InputError) as error:
        Vocab.from_file(path)
    message = str(error.value)
    assert "\n" not in message
    for word in [str(path), *words]:
        assert word in message


@pytest.mark.parametrize(("name", "word"), [("absent.txt", "no such"), ("", "directory")])
def test_missing_file_and_directory(tmp_path, name, word):
    with pytest.raises(InputError, match=word):
        Vocab.from_file(tmp_path / name)


@pytest.mark.parametrize(("name", "size"), [
    ("uncased", 30522), ("cased", 28996), ("multilingual-cased", 119547)])
def test_released_vocabularies(shared_data, name, size):
    vocab = Vocab.from_file(shared_data / "vocab" / f"bert-base-{name}-vocab.txt")
    assert len(vocab) == size and special_ids(vocab) == (0, 100, 101, 102, 103)
