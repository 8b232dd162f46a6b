"""Models of letters and k-mers in Hugging Face folders: read back, and the ids of AutoTokenizer."""

import random

import numpy as np
import pytest

from bert_jax.foreign import load_weights
from bert_jax.foreign.huggingface import write_huggingface
from bert_jax.loading import load
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.kmers import kmer_tokens
from bert_jax.text.letters import letter_tokens
from tests.predict import tiny

TOKENS = {
    'vocab.letters': letter_tokens('ACGTN'),
    'vocab.kmers': kmer_tokens(3),
}
TEXTS = ['ACGTACGTA', 'acg', 'ACNNGTTTAC', 'A CGTC\nGT', 'MKV', 'ACG\u00e9T', *(
    ''.join(random.Random(i).choices('ACGTN', k=30)) for i in range(50))]
both = pytest.mark.parametrize('file_name', TOKENS)


@pytest.fixture
def folder(tmp_path, file_name):
    """A Hugging Face folder of a random model."""
    weights = tiny.pretraining_weights(tmp_path, TOKENS[file_name], file_name)
    write_huggingface(tmp_path / 'folder', weights)
    return tmp_path / 'folder'


@both
def test_a_folder_is_read_back_with_its_tokenizer(folder, file_name):
    weights = load_weights(folder)
    assert weights.vocab_file == folder / file_name
    tokenizer = load_tokenizer(weights.vocab_file, weights.lowercase)
    assert tokenizer.vocab.tokens == tuple(TOKENS[file_name])


@pytest.mark.slow
@both
def test_predictions_fill_and_score_letters(folder, file_name):
    model = load(folder)
    filled, _ = model.fill_mask(['ACG[MASK]ACGTA', 'NN[MASK]'], top_k=9)
    letters = [found for found in filled['predictions'] if found['token'][0] != '[']
    assert letters
    for prediction in letters:
        assert prediction['sequence'] == f"ACG{prediction['token']}ACGTA"
    score, = model.score(['acgtac'])
    assert score['num_tokens'] == {'vocab.letters': 6, 'vocab.kmers': 2}[file_name]
    vectors = model.vectors(['ACGTAC', 'acgtac'])
    np.testing.assert_allclose(vectors[0], vectors[1], rtol=1e-5)


@both
def test_a_folder_that_transformers_wrote_has_only_the_tokenizer_json(folder, file_name):
    pytest.importorskip('tokenizers')
    own = load_tokenizer(folder / file_name, lowercase=True)
    (folder / file_name).unlink()
    weights = load_weights(folder)
    assert weights.vocab_file.name == 'tokenizer.json'
    library = load_tokenizer(weights.vocab_file, weights.lowercase)
    assert library.encode_batch(TEXTS) == own.encode_batch(TEXTS)
    for pair in (False, True):
        assert library.vocab.frame.template(pair=pair) == own.vocab.frame.template(pair=pair)


@both
@pytest.mark.extras
def test_auto_tokenizer_has_the_same_ids(folder, file_name):
    transformers = pytest.importorskip(
        'transformers', reason='the extra [parity] is not installed')
    tokenizer = load_tokenizer(folder / file_name, lowercase=True)
    cls, sep, mask = tokenizer.vocab.cls_id, tokenizer.vocab.sep_id, tokenizer.vocab.mask_id
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert auto(text)['input_ids'] == [cls, *ids, sep]
        pair = auto(text, 'ACG')
        assert pair['input_ids'] == [cls, *ids, sep, *tokenizer.encode('ACG'), sep]
    assert auto('ACG[MASK]')['input_ids'][-2] == auto.mask_token_id == mask
    assert auto.model_max_length == 48
    dna = TEXTS[-1]
    assert auto.decode(tokenizer.encode(dna)) == dna
