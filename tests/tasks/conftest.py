"""Fixtures of tasks that are opened on small files (`tests.tasks.opened`)."""

import pytest

from bert_jax.corpus import preparing, tokenize
from bert_jax.rows import table
from tests.tasks.files import put
from tests.tasks.opened import WORDS


@pytest.fixture(autouse=True)
def _without_tensorflow(monkeypatch):
    """The same ids (see tests/corpus/test_tokenize_plain.py), without a graph for each task."""
    for module in (preparing, tokenize):
        monkeypatch.setattr(module, 'has_tensorflow', lambda: False)


@pytest.fixture
def vocabulary(tmp_path):
    """Writes vocab.txt, whose only words are WORDS."""
    special = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '.', '?']
    put(tmp_path, 'vocab.txt', [*special, *WORDS])


@pytest.fixture
def on_hub(monkeypatch):
    """Files of the Hugging Face hub, by name; a test adds them."""
    files: dict[str, str] = {}
    monkeypatch.setattr(table, 'parquet_files', lambda path: [files.get(path, path)])
    return files
