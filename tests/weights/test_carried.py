"""What a model says besides its fields goes through every format: its head, how it predicts."""

import dataclasses
import json
import shutil

import pytest
from run_model import RECORDED, assert_same

from bert_jax.runtime.checksum import check_digest
from bert_jax.text import load_tokenizer, read_switches, switches_of
from bert_jax.weights import load_weights
from bert_jax.weights.huggingface import fast_tokenizer, write_huggingface
from bert_jax.weights.run_directory import write_run

INFERENCE = {'max_seq_length': 9, 'doc_stride': 4, 'null_threshold': -1.5}


def write_tf1(folder, weights):
    pytest.importorskip('tensorflow', reason='it writes TF1 checkpoints')
    from bert_jax.weights import tf1

    tf1.write_tf1(folder, weights)


SWITCHES = {'strip_accents': False, 'tokenize_chinese_chars': False, 'never_split': ['B']}


@pytest.mark.parametrize('where', ['tokenizer_config.json', 'tokenizer.json'])
def test_the_switches_of_a_tokenizer_go_to_a_run_and_back(where, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    source = tmp_path / 'source'
    shutil.copytree(RECORDED / 'classification', source)
    wanted = switches_of(SWITCHES, where)
    if where == 'tokenizer.json':  # as the tokenizers library alone would have it
        wanted = dataclasses.replace(wanted, never_split=())
        tokens = (source / 'vocab.txt').read_text().splitlines()
        (source / where).write_text(json.dumps(fast_tokenizer(tokens, True, wanted)))
    else:
        (source / where).write_text(json.dumps(SWITCHES | {
            'tokenizer_class': 'BertTokenizer', 'do_lower_case': True}))
    weights = load_weights(source)
    for write, folder in ((write_run, 'run'), (write_huggingface, 'out'), (write_run, 'again')):
        assert read_switches(weights.vocab_file) == wanted
        tokenizer = load_tokenizer(weights.vocab_file, weights.lowercase)
        assert tokenizer.tokenize('\u00e9') == ['[UNK]']  # e without its accent is in it
        write(tmp_path / folder, weights)
        weights = load_weights(tmp_path / folder)
    said = json.loads((tmp_path / 'out' / 'tokenizer_config.json').read_text())
    assert said['strip_accents'] is False and said['tokenize_chinese_chars'] is False


FORMATS = {
    'bert_jax': (write_run, 'config.json', 'inference'),
    'huggingface': (write_huggingface, 'config.json', 'bert_jax_inference'),
    'tf1': (write_tf1, 'bert_config.json', 'bert_jax_inference'),
}


FOLDERS = {
    'base': '', 'base_bfloat16': '', 'pretraining': 'pretraining', 'masked_lm': 'pretraining',
    'classification': 'classification', 'regression': 'regression',
    'multiple_choice': 'multiple_choice', 'token_classification': 'token_classification',
    'question_answering': 'question_answering',
}
TANH = {'base_bfloat16', 'pretraining', 'multiple_choice', 'question_answering'}
LABELS = {
    'classification': ('negative', 'neutral', 'positive'),
    'token_classification': ('O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC'),
}


@pytest.mark.parametrize('form', FORMATS)
@pytest.mark.parametrize('name', FOLDERS)
def test_what_is_written_is_what_was_read(name, form, tmp_path):
    weights = load_weights(RECORDED / name)
    assert (weights.head, weights.labels) == (FOLDERS[name], LABELS.get(name, ()))
    assert weights.model['hidden_act'] == ('gelu_tanh' if name in TANH else 'gelu_erf')
    FORMATS[form][0](tmp_path / 'out', weights)
    again = load_weights(tmp_path / 'out')
    assert_same(weights, again)
    assert again.unused == weights.unused
    assert again.vocab_file.read_bytes() == weights.vocab_file.read_bytes()


@pytest.mark.parametrize('form', FORMATS)
def test_heads_labels_and_how_predictions_are_made(form, tmp_path):
    write, name, key = FORMATS[form]
    weights = dataclasses.replace(
        load_weights(RECORDED / 'classification'), head='multi_label', inference=INFERENCE)
    write(tmp_path / 'out', weights)
    again = load_weights(tmp_path / 'out')
    assert (again.head, again.labels) == ('multi_label', weights.labels)
    assert again.inference == INFERENCE
    config_file = tmp_path / 'out' / name
    said = check_digest(json.loads(config_file.read_text()), config_file)
    del said[key]
    config_file.write_text(json.dumps(said))
    assert load_weights(tmp_path / 'out').inference == {}
