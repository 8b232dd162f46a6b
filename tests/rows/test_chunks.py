"""Sentences too long for a pair are cut into parts. (`test_pretrain.py` tests the chunks.)"""

import numpy as np
import pytest

from bert_jax.rows import pairs as pairs_lib
from bert_jax.rows.pairs import Documents, cut_long_sentences
from tests.rows import stores

ROOM = 32  # tokens; parts have an eighth


@pytest.mark.parametrize(('documents', 'parts'), [
    pytest.param([[16, 3], [1]], [[16, 3], [1]], id='half of the room is not split'),
    pytest.param(
        [[17, 3], [1], [40]], [[4] * 4 + [1, 3], [1], [4] * 10], id='at the ends of documents'),
    pytest.param([[1], [2, 99, 5], [6]], [[1], [2, *[4] * 24, 3, 5], [6]], id='in the middle'),
])
@pytest.mark.parametrize('block', [1, 3, 1 << 22])
def test_long_sentences_are_split_into_short_parts(monkeypatch, documents, parts, block):
    monkeypatch.setattr(pairs_lib, '_BLOCK', block)
    store = stores.make_store([*documents, [77, 77]])
    used = np.arange(len(documents))  # the last document is not used
    first = store.document_offsets[used]
    last = store.document_offsets[used + 1]
    found = cut_long_sentences(Documents(store.sentence_offsets, first, last), ROOM)
    offsets = [
        found.offsets[begin : end + 1]
        for begin, end in zip(found.first, found.last, strict=True)]
    assert [np.diff(document).tolist() for document in offsets] == parts
    begins = [document[0] for document in offsets]
    assert begins == store.sentence_offsets[first].tolist()
