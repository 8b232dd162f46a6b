"""What is read and written: spellings, shards, vocabularies, heads, settings, in every format."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.completion import complete
from bert_jax.config import default_config
from bert_jax.config.bert_config import BertConfig
from bert_jax.foreign import load_weights, tf1
from bert_jax.foreign.huggingface import read_card, write_huggingface
from bert_jax.foreign.tokenizer_files import fast_tokenizer
from bert_jax.run.model import write_run
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import upload
from bert_jax.text.added import AddedToken
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.switches import read_switches, switches_of
from bert_jax.text.vocab import Vocab
from bert_jax.text.vocab_files import read_vocab
from bert_jax.text.wordpiece import Switches, WordPieceTokenizer
from bert_jax.weights.parameters import Weights, sizes_of, tensors
from tests.foreign.run_model import RECORDED, assert_same, assert_same_params
from tests.refusals import refused


def write_tf1(folder, weights):
    pytest.importorskip('tensorflow', reason='it writes TF1 checkpoints')
    return tf1.write_tf1(folder, weights)


FORMATS = {'bert_jax': write_run, 'huggingface': write_huggingface, 'tf1': write_tf1}
HEADS = {'base': '', 'base_bfloat16': '', 'masked_lm': 'pretraining'}  # of folders with other names
TANH = {'base_bfloat16', 'pretraining', 'multiple_choice', 'question_answering'}
LABELS = {'classification': ('negative', 'neutral', 'positive'),
          'token_classification': ('O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC')}


@pytest.mark.parametrize('format', FORMATS)
@pytest.mark.parametrize('name', [
    'base', 'base_bfloat16', 'pretraining', 'masked_lm', 'classification', 'regression',
    'multiple_choice', 'token_classification', 'question_answering'])
def test_weights_that_are_read_written_and_read_again_are_the_same(name, format, tmp_path):
    weights = load_weights(RECORDED / name)
    assert (weights.head, weights.labels) == (HEADS.get(name, name), LABELS.get(name, ()))
    assert weights.model['hidden_act'] == ('gelu_tanh' if name in TANH else 'gelu_erf')
    FORMATS[format](tmp_path / 'out', weights)
    again = load_weights(tmp_path / 'out')
    assert_same(weights, again)
    assert again.unused == weights.unused
    assert again.vocab_file.read_bytes() == weights.vocab_file.read_bytes()


def test_a_model_card_lists_what_makes_another_model_only_where_it_does(tmp_path):
    weights = load_weights(RECORDED / 'pretraining')
    write_huggingface(tmp_path / 'bert', weights)
    card = (tmp_path / 'bert' / 'README.md').read_text()
    assert '| hidden_size | 8 |' in card
    assert 'rotary' not in card and 'pre_norm' not in card
    with_dropout = {**weights.model, 'pooler_dropout': 0.2}
    write_huggingface(tmp_path / 'other', dataclasses.replace(weights, model=with_dropout))
    assert '| pooler_dropout | 0.2 |' in (tmp_path / 'other' / 'README.md').read_text()


def test_a_model_card_takes_in_a_file_of_the_user_s(tmp_path):
    weights = load_weights(RECORDED / 'pretraining')
    own = tmp_path / 'card.md'
    own.write_text('---\nlanguage: hi\nlicense: mit\n---\n\n## Data\n\n{braces}: articles.\n')
    write_huggingface(tmp_path / 'bert', weights, read_card(own))
    card = (tmp_path / 'bert' / 'README.md').read_text()
    assert card.startswith(
        '---\nlibrary_name: transformers\ntags:\n- bert\nlanguage: hi\nlicense: mit\n---\n')
    assert card.endswith('\n## Data\n\n{braces}: articles.\n') and 'not known here' not in card
    own.write_text('No front matter.\n')
    assert read_card(own).front_matter == ''
    own.write_bytes('\ufeff--- \r\nlanguage: hi\r\n---\r\nOf Windows.'.encode())
    assert read_card(own) == ('language: hi\n', 'Of Windows.')


@pytest.mark.parametrize('content, says', [
    (b'---\nlanguage: hi\n', 'has no second line ---'),
    (b'---\nlanguage: hi\ntags: [x]\n---\n', 'line 3: .tags: .x.. is what the card says itself'),
    (b'---\nlicense: mit: x\n---\n', 'its front matter is no YAML .mapping values'),
    (b'---\n- hi\n---\n', 'its front matter has no fields'),
    (b'---\n\xef\xbb\xbf\n---\n', 'its front matter has no fields'),
    (b' \n', 'is empty; check --card'),
    (b'\xdcber das Modell\n', 'is not UTF-8 .byte 0.: convert it'),
])
def test_a_card_that_would_be_no_card_is_refused(content, says, tmp_path):
    (tmp_path / 'card.md').write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_card(tmp_path / 'card.md')


def test_names_are_no_markup_in_a_model_card(tmp_path):
    weights = load_weights(RECORDED / 'classification')
    labels = ('\x1b[31mred', '<script>a|b', 'a\n---\nlicense: mit\n---')
    write_huggingface(tmp_path / 'new', dataclasses.replace(weights, labels=labels))
    card = (tmp_path / 'new' / 'README.md').read_text()
    assert card.count('\n---\n') == 1 and '\x1b' not in card and '<script>' not in card
    (row,) = [line for line in card.splitlines() if line.startswith('| labels |')]
    assert row.count('|') == 3 and '---' in row
    assert load_weights(tmp_path / 'new').labels == labels


@pytest.mark.parametrize('format', FORMATS)
def test_head_labels_and_inference_settings_are_kept_by_every_format(format, tmp_path):
    inference = {'max_seq_length': 9, 'doc_stride': 4, 'null_threshold': -1.5}
    weights = dataclasses.replace(
        load_weights(RECORDED / 'classification'), head='multi_label', inference=inference)
    FORMATS[format](tmp_path / 'out', weights)
    assert_same(weights, load_weights(tmp_path / 'out'))


def copy(folder, name='pretraining', **files):
    """A copy of a recorded folder, with JSON files of other contents."""
    shutil.copytree(RECORDED / name, folder / 'model')
    for file, content in files.items():
        (folder / 'model' / f'{file}.json').write_text(json.dumps(content))
    return folder / 'model'


def rename(old, new):
    return lambda tensors: {name.replace(old, new): x for name, x in tensors.items()}


SPELLINGS = {
    'gamma': rename('LayerNorm.weight', 'LayerNorm.gamma'),
    'beta': rename('LayerNorm.bias', 'LayerNorm.beta'),
    'tied copies': lambda t: t | {
        'cls.predictions.decoder.weight': t['bert.embeddings.word_embeddings.weight'],
        'cls.predictions.decoder.bias': t['cls.predictions.bias']},
    'bias of the decoder alone': rename('cls.predictions.bias', 'cls.predictions.decoder.bias'),
    'buffers': lambda t: t | {'bert.embeddings.position_ids': np.arange(10)[None]},
    **{prefix: lambda t, prefix=prefix: {prefix + name: x for name, x in t.items()}
       for prefix in ('module.', '_orig_mod.', 'model.', 'module._orig_mod.')},
    'bert. twice': lambda t: {'bert.' + name: x for name, x in t.items()},
    'bert. before the head': lambda t: {
        'bert.' + name.removeprefix('bert.'): x for name, x in t.items()},
    'model. of a base model': lambda t: {
        name.replace('bert.', 'model.'): x for name, x in t.items()},
    'no place': lambda t: t | {'sop.weight': np.ones((2, 8), np.float32)},
    'a copy': lambda t: t | {'bert.cls.predictions.bias': t['cls.predictions.bias']}}
UNUSED = {'no place': ('sop.weight',), 'a copy': ('bert.cls.predictions.bias',)}


@pytest.mark.parametrize('name', SPELLINGS)
def test_other_names_of_the_same_tensors_are_read(name, tmp_path):
    file = copy(tmp_path) / 'model.safetensors'
    save_file(SPELLINGS[name](load_file(file)), file, metadata={'format': 'pt'})
    weights = load_weights(file.parent)
    assert_same_params(weights.params, load_weights(RECORDED / 'pretraining').params)
    assert weights.unused == UNUSED.get(name, ())


def test_float64_is_rounded_which_is_said(tmp_path, capsys):
    file = copy(tmp_path) / 'model.safetensors'
    tensors = {name: x.astype(np.float64) + 1e-12 for name, x in load_file(file).items()}
    save_file(tensors, file)
    params = load_weights(file.parent).params
    bias = params['bert/pooler/dense/bias']
    np.testing.assert_array_equal(bias, tensors['bert.pooler.dense.bias'].astype(np.float32))
    assert all(x.dtype == np.float32 for x in params.values())
    assert capsys.readouterr().err.count('its float64 is rounded to float32') == 1


@pytest.mark.parametrize('old', ['gamma', 'beta'])
def test_two_names_of_one_parameter_are_refused(old, tmp_path):
    file = copy(tmp_path) / 'model.safetensors'
    tensors = load_file(file)
    name = 'bert.embeddings.LayerNorm'
    save_file(tensors | {f'{name}.{old}': np.ones(8, np.float32)}, file)
    with refused(f'{name}.{old}', f'{name}.{"weight" if old == "gamma" else "bias"}', 'save'):
        load_weights(file.parent)


@pytest.mark.parametrize(('names', 'ids', 'said'), [
    (['a', 'b', 'c'], {'a': 0, 'b': 1, 'c': 2}, ''),
    (['a', 'b', 'c'], {'a': '0', 'b': '1', 'c': '2'}, ''),
    (['a', 'b', 'c'], {'LABEL_0': 0, 'LABEL_1': 1, 'LABEL_2': 2}, ''),
    (['a', 'b', 'c'], {'c': 0, 'b': 1, 'a': 2}, 'a is 0 in id2label and 2 in label2id'),
    ([], {'a': 0, 'b': 1, 'c': 2}, 'have names in label2id alone'),
    (['LABEL_0', 'LABEL_1', 'LABEL_2'], {'a': 0, 'b': 1, 'c': 2}, 'have names in label2id alone'),
    (['LABEL_0', 'LABEL_1', 'LABEL_2'], {'LABEL_0': 0, 'LABEL_1': 1, 'LABEL_2': 2}, ''),
    ([], {'LABEL_0': 0, 'LABEL_1': 1, 'LABEL_2': 2}, ''),
    ([], None, ''),
    ([], {}, ''),
])
def test_labels_of_other_ids_are_said(names, ids, said, tmp_path, capsys):
    config = json.loads((RECORDED / 'classification' / 'config.json').read_text())
    config |= {'id2label': {str(i): name for i, name in enumerate(names)}, 'label2id': ids}
    weights = load_weights(copy(tmp_path, 'classification', config=config))
    assert list(weights.labels) == (names or ['LABEL_0', 'LABEL_1', 'LABEL_2'])
    err = capsys.readouterr().err
    assert said in err and ('label2id' in err) == bool(said)


@pytest.mark.parametrize('name', ['cls.predictions.bias', 'bert.pooler.dense.bias'])
def test_two_values_of_one_parameter_are_refused(name, tmp_path):
    file = copy(tmp_path) / 'model.safetensors'
    tensors = load_file(file)
    save_file(tensors | {f'bert.{name}': tensors[name] + 3}, file)
    with refused(f'bert.{name} and {name} are one parameter and differ', 'save the one'):
        load_weights(file.parent)


@pytest.mark.parametrize('more', [
    pytest.param({'cls.predictions.bias': 0, 'bert.cls.predictions.bias': 1}, id='of another head'),
    pytest.param({'bert.classifier.weight': 2}, id='of another shape'),
    pytest.param({'projector.parametrizations.weight.original': 3}, id='of no parameter'),
])
def test_what_is_not_read_may_differ(more, tmp_path):
    file = copy(tmp_path, 'classification') / 'model.safetensors'
    tensors = load_file(file)
    save_file(tensors | {
        name: np.full((8, 2 + number), number, np.float32) for name, number in more.items()}, file)
    weights = load_weights(file.parent)
    assert set(weights.unused) == set(more)
    assert_same_params(weights.params, load_weights(RECORDED / 'classification').params)


@pytest.mark.parametrize(('class_name', 'is_refused'), [
    ('BertForQuestionAnswering', False), ('BertForMaskedLM', True), ('', True)])
def test_what_is_left_of_another_head_is_not_read(class_name, is_refused, tmp_path):
    """As transformers reads it; a class that is not known may have that head."""
    folder = copy(tmp_path, 'question_answering')
    config = json.loads((folder / 'config.json').read_text())
    config['architectures'] = [class_name] if class_name else None
    (folder / 'config.json').write_text(json.dumps(config))
    tensors = load_file(folder / 'model.safetensors')
    rest = {name: np.zeros(config['vocab_size'], np.float32)
            for name in ('cls.predictions.bias', 'cls.predictions.decoder.bias')}
    save_file(tensors | rest, folder / 'model.safetensors')
    if is_refused:
        with refused('has no tensor cls.predictions.transform.dense.weight'):
            load_weights(folder)
        return
    weights = load_weights(folder)
    assert weights.unused == tuple(rest)
    assert_same_params(weights.params, load_weights(RECORDED / 'question_answering').params)


@pytest.mark.parametrize('num_more', [0, 1])
def test_a_whole_head_that_the_class_lacks_is_left_if_its_vocabulary_is_another(
    num_more, tmp_path
):
    folder = copy(tmp_path, 'question_answering')
    path = folder / 'model.safetensors'
    head = {name: x for name, x in load_file(RECORDED / 'pretraining' / path.name).items()
            if name.startswith('cls.predictions')}
    bias = 'cls.predictions.bias'
    head[bias] = np.pad(head[bias], (0, num_more))
    save_file(load_file(path) | head, path)
    weights = load_weights(folder)
    assert weights.head == 'question_answering'
    assert weights.has('cls/predictions') == (not num_more)
    assert weights.unused == (tuple(sorted(head)) if num_more else ())


def test_masked_lm_alone_is_read_from_the_class_of_pretraining(tmp_path):
    """Some published files lack pooler and next-sentence head; transformers draws these anew."""
    file = copy(tmp_path) / 'model.safetensors'
    assert json.loads((file.parent / 'config.json').read_text())['architectures'] == [
        'BertForPreTraining']
    kept = {name: x for name, x in load_file(file).items()
            if 'pooler' not in name and 'seq_relationship' not in name}
    save_file(kept, file, metadata={'format': 'pt'})
    weights = load_weights(file.parent)
    assert weights.head == 'pretraining' and weights.has('cls/predictions')
    assert not weights.has('bert/pooler')


@pytest.mark.parametrize('said, has_upper, expected', [
    (True, True, True), (False, False, False), (None, True, False), (None, False, True)])
def test_lower_case(said, has_upper, expected, tmp_path, capsys):
    """tokenizer_config.json decides; without it, whether the vocabulary has upper case: noted."""
    files = {} if said is None else {'tokenizer_config': {'do_lower_case': said}}
    vocab = copy(tmp_path, **files) / 'vocab.txt'
    if has_upper:
        vocab.write_text(vocab.read_text().replace('\nz\n', '\nZ\n'))
    assert load_weights(vocab.parent).lowercase is expected
    is_said = 'no file says do_lower_case: text keeps its capitals' in capsys.readouterr().err
    assert is_said == (said is None and not expected)


def test_a_vocabulary_in_tokenizer_json_or_none(monkeypatch, tmp_path):
    """As transformers 5 writes it, with added tokens last."""
    monkeypatch.setenv('HOME', str(tmp_path))
    tokens = (RECORDED / 'base' / 'vocab.txt').read_text().split()
    ids = {token: i for i, token in enumerate(tokens[:-1])}
    path = copy(tmp_path, tokenizer={'model': {'type': 'WordPiece', 'vocab': ids}, 'added_tokens': [
        {'content': tokens[-1], 'id': len(ids)}, {'content': '[PAD]', 'id': 0}]})
    (path / 'vocab.txt').unlink()
    weights = load_weights(path)
    assert load_tokenizer(weights.vocab_file, weights.lowercase).vocab.tokens == tuple(tokens)
    (path / 'tokenizer.json').unlink()
    weights = load_weights(path)
    assert weights.vocab_file is None and weights.lowercase
    notes = write_huggingface(path / 'out', weights)
    assert notes == ['no tokenizer files: there is no vocabulary']


def test_rows_without_a_token_are_accepted_with_a_note(tmp_path, capsys, monkeypatch):
    """Of a padded embedding, or where ids of a tokenizer.json are left out."""
    monkeypatch.setenv('HOME', str(tmp_path))
    path = copy(tmp_path)
    tokens = (path / 'vocab.txt').read_text().split()
    (path / 'vocab.txt').write_text('\n'.join(tokens[:-2]) + '\n')
    weights = load_weights(path)
    assert weights.model['vocab_size'] == 40 and 'has 38 tokens, the embedding has 40 rows' in (
        capsys.readouterr().err)
    config = default_config()
    config.model.name = ''
    assert complete(config, weights).model.vocab_size == 40
    ids = {token: i for i, token in enumerate(tokens) if i != 30}
    (path / 'tokenizer.json').write_text(json.dumps({'model': {'vocab': ids}}))
    (path / 'vocab.txt').unlink()
    found = load_weights(path).vocab_file.read_text().splitlines()
    assert found == [*tokens[:30], '[unused row 30]', *tokens[31:]]
    assert '1 of the ids from 0 to 39' in capsys.readouterr().err


SWITCHES = {'strip_accents': False, 'tokenize_chinese_chars': False, 'never_split': ['B']}


@pytest.mark.parametrize('where', ['tokenizer_config', 'tokenizer'])
def test_the_switches_of_a_tokenizer_go_to_a_run_and_back(where, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    wanted = switches_of(SWITCHES, where)
    content = SWITCHES | {'tokenizer_class': 'BertTokenizer', 'do_lower_case': True}
    if where == 'tokenizer':  # as the tokenizers library writes it, without never_split
        wanted = dataclasses.replace(wanted, never_split=())
        vocab = read_vocab(RECORDED / 'classification' / 'vocab.txt')
        content = fast_tokenizer(WordPieceTokenizer(vocab, True, wanted))
    weights = load_weights(copy(tmp_path, 'classification', **{where: content}))
    for write, folder in ((write_run, 'run'), (write_huggingface, 'out'), (write_run, 'again')):
        assert read_switches(weights.vocab_file) == wanted
        tokenizer = load_tokenizer(weights.vocab_file, weights.lowercase)
        assert tokenizer.tokenize('\u00e9') == ['[UNK]']  # stripped of its accent, it is known
        write(tmp_path / folder, weights)
        weights = load_weights(tmp_path / folder)
    said = json.loads((tmp_path / 'out' / 'tokenizer_config.json').read_text())
    assert said['strip_accents'] is False and said['tokenize_chinese_chars'] is False


@pytest.mark.parametrize('format', ['bert_jax', 'huggingface'])
def test_added_tokens_go_to_every_format(format, tmp_path, monkeypatch):
    """From a folder without vocab.txt, as transformers 5 writes it."""
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    tokens = (RECORDED / 'base' / 'vocab.txt').read_text().split()
    added = (AddedToken('[E1]', 38, normalized=False, special=True),
             AddedToken('a+b', 39, single_word=True))
    original = WordPieceTokenizer(
        Vocab.from_tokens(tokens[:38]), True, Switches(added_tokens=added))
    path = copy(tmp_path, 'base', tokenizer=fast_tokenizer(original))
    (path / 'vocab.txt').unlink()
    text = 'a[E1] A+b ca+b'
    weights = load_weights(path)
    for folder in ('once', 'again'):
        tokenizer = load_tokenizer(weights.vocab_file, weights.lowercase)
        assert tokenizer.encode(text) == original.encode(text)
        assert {38, 39} <= set(tokenizer.encode(text)) and len(tokenizer.vocab) == 40
        assert fast_tokenizer(tokenizer) == fast_tokenizer(original)
        FORMATS[format](tmp_path / folder, weights)
        weights = load_weights(tmp_path / folder)


def test_a_tf1_checkpoint_names_added_tokens_as_lost(tmp_path):
    path = copy(tmp_path, 'base', added_tokens={'[E1]': 39})
    tokens = (path / 'vocab.txt').read_text().split()
    (path / 'vocab.txt').write_text('\n'.join(tokens[:39]))
    notes = write_tf1(tmp_path / 'tf1', load_weights(path))
    assert any('tokens [E1] were added' in note for note in notes)
    assert (tmp_path / 'tf1' / 'vocab.txt').read_text().split('\n')[39] == '[unused row 39]'


def test_a_large_model_is_written_in_shards(tmp_path, monkeypatch):
    weights = load_weights(RECORDED / 'pretraining')
    monkeypatch.setattr('bert_jax.foreign.safetensors_files.SHARD_BYTES', 4000)
    write_huggingface(tmp_path, weights)
    files = sorted(tmp_path.glob('*.safetensors'))
    assert len(files) > 1 and files[0].name == f'model-00001-of-{len(files):05}.safetensors'
    sizes = [sum(x.nbytes for x in load_file(file).values()) for file in files]
    assert max(sizes) <= 4000
    index = json.loads((tmp_path / 'model.safetensors.index.json').read_text())
    assert index['metadata']['total_size'] == sum(sizes)
    assert_same(load_weights(tmp_path), weights)


def test_an_index_may_name_tensors_that_were_taken_out(tmp_path, monkeypatch, capsys):
    """As transformers reads it; a tensor that the model needs is missed by its name."""
    weights = load_weights(RECORDED / 'pretraining')
    monkeypatch.setattr('bert_jax.foreign.safetensors_files.SHARD_BYTES', 4000)
    write_huggingface(tmp_path, weights)
    file = tmp_path / 'model.safetensors.index.json'
    index = json.loads(file.read_text())
    shard = index['weight_map']['cls.predictions.bias']
    index['weight_map']['sop.weight'] = shard
    file.write_text(json.dumps(index))
    assert_same(load_weights(tmp_path), weights)
    assert f'in none of its files, such as sop.weight of {shard}' in capsys.readouterr().err
    tensors = load_file(tmp_path / shard)
    del tensors['cls.predictions.bias']
    save_file(tensors, tmp_path / shard)
    with refused(file, 'has no tensor cls.predictions.bias'):
        load_weights(tmp_path)


def test_a_failure_leaves_nothing(tmp_path):
    weights = load_weights(RECORDED / 'base')
    broken = dataclasses.replace(weights, vocab_file=tmp_path / 'gone' / 'vocab.txt')
    with pytest.raises(InputError, match='gone'):
        write_huggingface(tmp_path / 'out', broken)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_has_the_names_and_shapes_of_googles(shared_data, tmp_path):
    """Those of BERT-Medium as it was published."""
    tf = pytest.importorskip('tensorflow')
    released = shared_data / 'checkpoint_index' / 'uncased_L-8_H-512_A-8'
    model = vars(BertConfig(
        vocab_size=30522, num_layers=8, hidden_size=512, num_heads=8, intermediate_size=2048))
    params = {
        tensor.name: np.zeros(tensor.shape(sizes_of(model)), np.float32)
        for tensor in tensors(model)
        if tensor.name.startswith(('bert/', 'cls/')) and not tensor.name.startswith('cls/squad/')}
    weights = Weights(params, model, 'pretraining', (), None, True, (), 'zeros')
    assert write_tf1(tmp_path / 'tf1', weights) == ['no vocab.txt: there is no vocabulary']
    expected = tf.train.list_variables(str(released / 'bert_model.ckpt'))
    assert len(expected) == 142
    assert tf.train.list_variables(str(tmp_path / 'tf1' / 'bert_model.ckpt')) == expected
    config = json.loads((tmp_path / 'tf1' / 'bert_config.json').read_text())
    assert config | json.loads((released / 'bert_config.json').read_text()) == config


def test_fields_that_the_original_lacks_are_noted_and_kept_in_its_config(tmp_path):
    weights = load_weights(RECORDED / 'base')  # erf form, epsilon 1e-5
    notes = '; '.join(write_tf1(tmp_path / 'tf1', weights))
    assert 'hidden_act is gelu_erf' in notes and 'layer_norm_eps is 1e-05' in notes
    config_file = tmp_path / 'tf1' / 'bert_config.json'
    config = json.loads(config_file.read_text())
    assert config['hidden_act'] == 'gelu'
    del config['gelu_form'], config['layer_norm_eps']
    config_file.write_text(json.dumps(config))
    assert load_weights(tmp_path / 'tf1').model == weights.model | {
        'hidden_act': 'gelu_tanh', 'layer_norm_eps': 1e-12}


def change_tf1(folder, change):
    """The prefix of a TF1 checkpoint with what a function makes of its arrays by name."""
    tf = pytest.importorskip('tensorflow')
    write_tf1(folder / 'tf1', load_weights(RECORDED / 'pretraining'))
    prefix = folder / 'tf1' / 'bert_model.ckpt'
    reader = tf.train.load_checkpoint(str(prefix))
    arrays = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    arrays |= change(arrays)
    tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=list(arrays), tensors=list(arrays.values()),
                      shape_and_slices=[''] * len(arrays))
    return prefix


def test_moments_and_counters_are_not_parameters(tmp_path):
    def change(arrays):
        moments = {f'{name}/adam_{x}': array for name, array in arrays.items() for x in 'mv'}
        return moments | {'global_step': np.int64(7), 'other/kernel': np.zeros(3, np.float32)}

    again = load_weights(change_tf1(tmp_path, change))
    assert again.unused == ('other/kernel',)
    assert_same(again, load_weights(RECORDED / 'pretraining'))


@pytest.mark.parametrize(('type', 'is_refused'), [
    ('float64', False), ('S1', True), ('int8', True), ('complex64', True)])
def test_a_tf1_variable_of_another_type(type, is_refused, tmp_path):
    name = 'bert/pooler/dense/bias'
    prefix = change_tf1(tmp_path, lambda arrays: {name: arrays[name].astype(type)})
    if is_refused:
        with refused(f'{prefix}: {name} is of type', 'save it as float32'):
            load_weights(prefix)
    else:
        assert_same(load_weights(prefix), load_weights(RECORDED / 'pretraining'))


def test_a_checkpoint_may_be_in_a_zip_file_or_below_its_config(tmp_path, bucket):
    """Also in a bucket; and below its config by another name."""
    weights = load_weights(RECORDED / 'classification')
    write_tf1(tmp_path / 'model' / 'init', weights)
    upload(shutil.make_archive(tmp_path / 'a', 'zip', tmp_path / 'model'), f'{bucket}/a.zip')
    for archive in (tmp_path / 'a.zip', f'{bucket}/a.zip'):
        assert_same(weights, load_weights(archive))
    folder = tmp_path / 'model' / 'init'
    for path in list(folder.iterdir()):
        if path.name.startswith('bert_model.ckpt'):
            path.rename(folder / path.name.replace('bert_model.ckpt', 'model.ckpt-100'))
        else:
            path.rename(tmp_path / 'model' / path.name)
    with pytest.raises(InputError, match=r'such as .*model\.ckpt-100$'):
        load_weights(folder)
    for spelling in ('', '.index', '.data-00000-of-00001'):
        again = load_weights(folder / f'model.ckpt-100{spelling}')
        assert_same(weights, again)
        assert again.vocab_file == tmp_path / 'model' / 'vocab.txt'
