"""Ids and types that models get, of single texts and of pairs, against transformers."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

import bert_jax
from bert_jax.foreign import load_weights
from bert_jax.run.model import write_run
from tests import tokenizers_of_kinds as kinds

pytestmark = [pytest.mark.extras]

torch = pytest.importorskip('torch', reason='the extra [parity] is not installed')
transformers = pytest.importorskip('transformers', reason='the extra [parity] is not installed')

WORDS = ['the', 'cats', 'sleep', 'a', 'dog', 'walking', 'sat', 'on', 'mat']
TEXTS = [' '.join((WORDS * 3)[i : i + n]) for i, n in enumerate((1, 3, 4, 9, 12, 6))]
TEXTS.append('The Café')
BERTS = {'cls_token': '[CLS]', 'sep_token': '[SEP]', 'pad_token': '[PAD]', 'unk_token': '[UNK]',
         'mask_token': '[MASK]'}
ROBERTAS = {'cls_token': '<s>', 'sep_token': '</s>', 'pad_token': '<pad>', 'unk_token': '<unk>',
            'mask_token': '<mask>', 'bos_token': '<s>', 'eos_token': '</s>'}
ALBERTS = BERTS | {
    'tokenizer_class': 'AlbertTokenizer', 'pad_token': '<pad>', 'unk_token': '<unk>',
    'mask_token': '<mask>'}
GENERAL = {'tokenizer_class': 'PreTrainedTokenizerFast'}
WITH_TYPES = {'model_input_names': ['input_ids', 'token_type_ids', 'attention_mask']}
DOUBLE = '[CLS] $A [SEP] [SEP] $B:1 [SEP]:1'


def wordpiece(pair='[CLS] $A [SEP] $B:1 [SEP]:1', **model):
    """BERT's WordPiece with a template and other fields of its model."""
    parts = json.loads(kinds.accented_wordpiece().to_str())
    parts['normalizer'] = {'type': 'BertNormalizer', 'clean_text': True, 'lowercase': True,
                           'handle_chinese_chars': True, 'strip_accents': None}
    parts['pre_tokenizer'] = {'type': 'BertPreTokenizer'}
    parts['model'] |= model
    library = Tokenizer.from_str(json.dumps(parts))
    library.post_processor = processors.TemplateProcessing(
        '[CLS] $A [SEP]', pair, [('[CLS]', 2), ('[SEP]', 3)])
    return library


def stale():
    """BERT's WordPiece around whose texts stands the id that [SEP] had in an older vocabulary."""
    library = wordpiece()
    library.post_processor = processors.BertProcessing(('[SEP]', 20), ('[CLS]', 2))
    return library


def with_space(adds):
    parts = json.loads(kinds.roberta().to_str())
    parts['pre_tokenizer']['add_prefix_space'] = adds
    return Tokenizer.from_str(json.dumps(parts))


def alberts():
    """Unigram with [UNK] where AlbertTokenizer has it, and another normalizer than its own."""
    parts = json.loads(kinds.xlmr().to_str())
    names = {'<s>': '<pad>', '<pad>': '<unk>', '</s>': '[CLS]', '<unk>': '[SEP]'}
    parts['model']['vocab'] = [
        [names.get(token, token), score] for token, score in parts['model']['vocab']]
    parts['model']['unk_id'] = 1
    parts['added_tokens'] = []
    library = Tokenizer.from_str(json.dumps(parts | {'post_processor': None}))
    library.post_processor = processors.TemplateProcessing(
        '[CLS] $A [SEP]', '[CLS] $A [SEP] $B:1 [SEP]:1', [('[CLS]', 2), ('[SEP]', 3)])
    return library


def cut_at_the_start(library):
    """What a tokenizer.json says of cutting counts where nothing beside it does."""
    library.enable_truncation(20, direction='left')
    return library


CASES = {
    'types of XLM-R': (kinds.xlmr, ROBERTAS | {'tokenizer_class': 'XLMRobertaTokenizer'}),
    'RobertaProcessing': (kinds.roberta, ROBERTAS | {'tokenizer_class': 'RobertaTokenizer'}),
    'general, types not stated': (wordpiece, BERTS | GENERAL),
    'general, types stated': (wordpiece, BERTS | GENERAL | WITH_TYPES),
    'other ids around texts': (stale, BERTS | GENERAL | WITH_TYPES),
    'the class has the ids around texts': (stale, BERTS | {'tokenizer_class': 'BertTokenizer'}),
    'BertTokenizer': (wordpiece, BERTS | {'tokenizer_class': 'BertTokenizer'}),
    'no types': (wordpiece, BERTS | {
        'tokenizer_class': 'BertTokenizer', 'model_input_names': ['input_ids', 'attention_mask']}),
    'no class': (wordpiece, BERTS),
    'no class, another template': (lambda: wordpiece(DOUBLE), BERTS),
    'ELECTRA, another template': (
        lambda: wordpiece(DOUBLE), BERTS | {'tokenizer_class': 'ElectraTokenizer'}),
    'two separators': (lambda: wordpiece(DOUBLE), BERTS | GENERAL | WITH_TYPES),
    'the class makes its template': (
        lambda: wordpiece(DOUBLE), BERTS | {'tokenizer_class': 'BertTokenizer'}),
    'no separator': (lambda: wordpiece('[CLS] $A $B:1 [SEP]'), BERTS | GENERAL | WITH_TYPES),
    'short words': (lambda: wordpiece(max_input_chars_per_word=4), BERTS | GENERAL),
    'left': (wordpiece, BERTS | {'tokenizer_class': 'BertTokenizer', 'truncation_side': 'left'}),
    'left in BPE': (kinds.modernbert, BERTS | GENERAL | {'truncation_side': 'left'}),
    'left in Unigram': (
        kinds.xlmr, ROBERTAS | {
            'tokenizer_class': 'XLMRobertaTokenizer', 'truncation_side': 'left'}),
    'left in the file': (lambda: cut_at_the_start(kinds.modernbert()), BERTS | GENERAL),
    "left in BERT's file": (
        lambda: cut_at_the_start(wordpiece()), BERTS | {'tokenizer_class': 'BertTokenizer'}),
    'space in the file': (
        lambda: with_space(True), ROBERTAS | {'tokenizer_class': 'RobertaTokenizer'}),
    'space beside it': (
        lambda: with_space(False), ROBERTAS | {
            'tokenizer_class': 'RobertaTokenizer', 'add_prefix_space': True}),
    'space beside it, general': (
        lambda: with_space(False), ROBERTAS | GENERAL | {'add_prefix_space': True}),
    'ALBERT makes its normalizer': (
        alberts, ALBERTS | {'do_lower_case': False, 'keep_accents': True}),
    "ALBERT's defaults": (alberts, ALBERTS),
    'MPNet makes its frame': (wordpiece, BERTS | {
        'tokenizer_class': 'MPNetTokenizer', 'do_lower_case': False}),
    'no space in Unigram': (
        kinds.xlmr, ROBERTAS | {
            'tokenizer_class': 'XLMRobertaTokenizer', 'add_prefix_space': False}),
}


def saved(folder, library, settings):
    """A BERT with two types of tokens, and this tokenizer."""
    torch.manual_seed(0)
    kinds.write(folder, library, **settings)
    config = transformers.BertConfig(
        vocab_size=450, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=64, num_labels=3, initializer_range=0.5)
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    return model, transformers.AutoTokenizer.from_pretrained(str(folder))


def assert_same(ours, theirs):
    """Ids and types of texts and pairs, whole and cut."""
    pairs = [(a, b) for a in TEXTS for b in TEXTS]
    for length in (64, 8, 9, 12, 13):
        for batch in (TEXTS, pairs):
            found = ours(batch, max_length=length)
            for i, text in enumerate(batch):
                texts = (text,) if isinstance(text, str) else text
                expected = theirs(*texts, truncation='longest_first', max_length=length)
                number = int(found['attention_mask'][i].sum())
                ids = expected['input_ids']
                assert found['input_ids'][i, :number].tolist() == ids, (text, length)
                types = expected.get('token_type_ids', [0] * len(ids))
                assert found['token_type_ids'][i, :number].tolist() == types, (text, length)


@pytest.mark.filterwarnings('ignore:.*longer than')
@pytest.mark.parametrize('case', CASES)
def test_ids_and_types(case, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    make, settings = CASES[case]
    _, theirs = saved(tmp_path / 'model', make(), settings)
    assert_same(bert_jax.from_pretrained(tmp_path / 'model').tokenizer, theirs)


@pytest.mark.filterwarnings('ignore:.*longer than')
@pytest.mark.parametrize('case', ['types of XLM-R', 'two separators', 'left', 'space in the file'])
def test_they_stay_in_what_is_written(case, tmp_path, monkeypatch):
    """In a run directory, and in a folder that is written from it."""
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    make, settings = CASES[case]
    _, theirs = saved(tmp_path / 'model', make(), settings)
    write_run(tmp_path / 'run', load_weights(tmp_path / 'model'))
    ours = bert_jax.from_pretrained(tmp_path / 'run')
    assert_same(ours.tokenizer, theirs)
    ours.save(tmp_path / 'written')
    assert_same(bert_jax.from_pretrained(tmp_path / 'written').tokenizer, theirs)
    written = transformers.AutoTokenizer.from_pretrained(str(tmp_path / 'written'))
    assert written(*TEXTS[:2]).data == theirs(*TEXTS[:2]).data


def test_predictions_of_pairs(tmp_path):
    """Both texts of XLM-R's tokenizer have type 0, also for a model that has two types."""
    make, settings = CASES['types of XLM-R']
    model, theirs = saved(tmp_path, make(), settings)
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    with torch.no_grad():
        inputs = theirs(*map(list, zip(*pairs, strict=True)), padding=True, return_tensors='pt')
        expected = torch.softmax(model(**inputs).logits, -1).numpy()
    found = [x['probabilities'] for x in bert_jax.load(tmp_path).classify(pairs)]
    rows = [list(x.values()) if isinstance(x, dict) else x for x in found]
    np.testing.assert_allclose(rows, expected, atol=1e-5)
