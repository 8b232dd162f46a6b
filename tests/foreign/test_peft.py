"""Adapters of peft, read, computed beside the kernels and in them, and written again.

peft itself is the oracle: its models have random adapters on random models of transformers.
"""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from bert_jax.foreign import load_weights, with_adapter
from bert_jax.foreign.peft import write_peft
from bert_jax.heads import HEADS
from bert_jax.model.layers import ModelConfig
from bert_jax.run.model import write_run
from bert_jax.weights.parameters import to_tree
from tests.foreign.run_model import (
    assert_same,
    assert_same_params,
    batch_of,
    encoder_outputs,
    outputs,
)
from tests.refusals import refused

pytestmark = [pytest.mark.slow, pytest.mark.extras]

torch = pytest.importorskip('torch', reason='the extra [parity] is not installed')
pytest.importorskip('transformers', reason='the extra [parity] is not installed')
from safetensors.torch import load_file, save_file  # noqa: E402

peft = pytest.importorskip('peft', reason='the extra [parity] is not installed')
from tests.foreign import family_models  # noqa: E402

CASES = {
    'lora': ('bert', 'ForSequenceClassification', {'target_modules': ['query', 'value']}),
    'rslora': ('roberta', 'ForTokenClassification', {
        'target_modules': ['key', 'attention.output.dense'], 'use_rslora': True}),
    'dora': ('distilbert', 'ForSequenceClassification', {
        'target_modules': ['q_lin', 'out_lin', 'lin1', 'lin2'], 'use_dora': True}),
    'fused': ('modernbert', 'ForSequenceClassification', {'target_modules': ['Wqkv', 'Wi']}),
    'fused dora': ('modernbert', 'ForTokenClassification', {
        'target_modules': ['Wqkv', 'Wo'], 'use_dora': True}),
    'questions': ('electra small', 'ForQuestionAnswering', {
        'target_modules': ['intermediate.dense', 'query'], 'task_type': 'QUESTION_ANS'}),
    'groups': ('eurobert of groups', 'ForTokenClassification', {
        'target_modules': ['q_proj', 'v_proj', 'gate_proj', 'up_proj']}),
    'jina': ('jina', 'ForSequenceClassification', {
        'target_modules': ['q_proj', 'v_proj', 'o_proj', 'fc1', 'fc2']}),
    'nomic': ('nomic', 'ForTokenClassification', {
        'target_modules': ['k_proj', 'gate_proj', 'up_proj', 'down_proj'], 'use_dora': True}),
    'gte': ('gte', 'ForSequenceClassification', {
        'target_modules': ['q_proj', 'gate_proj', 'up_proj']}),
    'gte encoder': ('gte', 'Model', {
        'target_modules': ['v_proj', 'down_proj'], 'task_type': 'FEATURE_EXTRACTION'}),
    'ultrabert': ('ultrabert', 'ForSequenceClassification', {
        'target_modules': ['q_proj', 'o_proj', 'down_proj']}),
    'ultrabert of groups': ('ultrabert of means', 'ForQuestionAnswering', {
        'target_modules': ['q_proj', 'k_proj', 'v_proj'], 'task_type': 'QUESTION_ANS'}),
    'albert': ('albert', 'ForSequenceClassification', {
        'target_modules': ['query', 'attention.dense', 'ffn']}),
    'mpnet': ('mpnet', 'ForSequenceClassification', {'target_modules': ['q', 'output.dense']}),
    'ranks': ('bert', 'ForSequenceClassification', {
        'target_modules': ['query', 'value'], 'rank_pattern': {'value': 5},
        'alpha_pattern': {'value': 3}}),
    'encoder': ('modernbert', 'Model', {
        'target_modules': ['Wqkv'], 'task_type': 'FEATURE_EXTRACTION', 'alpha_pattern': {
            '^layers.0.attn.Wqkv': 9, '^model.layers.1.attn.Wqkv': 90}}),
    'no task type': ('bert', 'ForSequenceClassification', {
        'target_modules': ['query'], 'task_type': None}),
    'no task type of an encoder': ('bert', 'Model', {
        'target_modules': ['query'], 'task_type': None}),
    'all-linear': ('bert', 'ForSequenceClassification', {'target_modules': 'all-linear'}),
    'all-linear dora': ('bert', 'ForSequenceClassification', {
        'target_modules': 'all-linear', 'use_dora': True}),
    'regular expression': ('roberta', 'ForSequenceClassification', {
        'target_modules': r'.*layer\.\d\.attention\.self\.(query|key)', 'use_rslora': True}),
    'some layers': ('bert', 'ForSequenceClassification', {
        'target_modules': ['query', 'output.dense'], 'exclude_modules': ['attention.output.dense'],
        'layers_to_transform': [1]}),
    'some layers dora': ('bert', 'ForTokenClassification', {
        'target_modules': ['key', 'intermediate.dense'], 'layers_to_transform': [0],
        'use_dora': True}),
    'one product of a gated layer': ('eurobert', 'ForSequenceClassification', {
        'target_modules': ['up_proj']}),
    'the pooler saved': ('bert', 'ForSequenceClassification', {
        'target_modules': ['value'], 'modules_to_save': ['pooler', 'classifier']}),
}
TASK_TYPES = {'ForSequenceClassification': 'SEQ_CLS', 'ForTokenClassification': 'TOKEN_CLS'}


def adapted(base, kind, fields):
    """A model of peft, whose adapter and head are drawn at random."""
    chosen = {'r': 3, 'lora_alpha': 6, 'task_type': TASK_TYPES.get(kind), **fields}
    model = peft.get_peft_model(base, peft.LoraConfig(**chosen)).eval()
    with torch.no_grad():
        for name, x in model.named_parameters():
            if 'lora_magnitude' in name:
                x.mul_(0.5 + torch.rand_like(x))
            elif x.requires_grad:
                x.normal_(std=0.2)
    return model


def theirs(model, inputs):
    # The class inside: that of peft for questions (0.21) does not hand on token_type_ids.
    return logits_in(family_models.outputs_of(model.get_base_model(), inputs))


def logits_in(found):
    if 'start_logits' in found:
        return np.stack([found['start_logits'], found['end_logits']], -1)
    return np.asarray(found['logits' if 'logits' in found else 'last_hidden_state'])


def ours(weights, inputs):
    return logits_in(outputs(weights, inputs))


def beside(weights, inputs):
    """What the model with the adapter beside its kernels computes."""
    config = ModelConfig(**weights.model, adapter=weights.adapter.options)
    params = to_tree({**weights.params, **weights.adapter.params}, config.padded_vocab_size)
    rows = [inputs[name].astype(np.int32) for name in
            ('input_ids', 'attention_mask', 'token_type_ids')]
    if not weights.head:
        return encoder_outputs(config, params, rows)['last_hidden_state']
    head = HEADS[weights.head].of_model(config, weights.num_labels, {})
    logits = logits_in(head.outputs(params, batch_of(rows)))
    return logits[:, 0] if weights.head == 'classification' else logits


def assert_close(found, expected, mask):
    if found.shape[:2] == mask.shape:
        found, expected = found[mask], expected[mask]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize('case', CASES)
def test_an_adapter_there_and_back(case, tmp_path):
    variant, kind, fields = CASES[case]
    base = family_models.random_model(variant, kind)
    base.save_pretrained(tmp_path / 'base')
    inputs = family_models.random_inputs(base, 16)
    mask = inputs['attention_mask'] == 1
    model = adapted(base, kind, fields)
    expected = theirs(model, inputs)
    model.save_pretrained(tmp_path / 'theirs')

    start = load_weights(tmp_path / 'base')
    weights = with_adapter(start, tmp_path / 'theirs', keep_adapter=True)
    assert_close(beside(weights, inputs), expected, mask)
    assert_close(ours(weights.merged, inputs), expected, mask)
    without = dataclasses.replace(weights, adapter=None)
    assert np.abs(ours(without, inputs) - expected).max() > 1e-3

    write_peft(tmp_path / 'ours', weights)
    fresh = family_models.random_model(variant, kind)  # the same numbers
    back = peft.PeftModel.from_pretrained(fresh, tmp_path / 'ours').eval()
    assert_close(theirs(back, inputs), expected, mask)
    again = with_adapter(start, tmp_path / 'ours', keep_adapter=True)
    assert_same_params(again.params, weights.params)
    if case in ('fused', 'fused dora', 'ranks', 'encoder'):  # whose rank is another here
        assert_close(ours(again.merged, inputs), expected, mask)
    else:
        assert again.adapter.options == weights.adapter.options
        assert_same_params(again.adapter.params, weights.adapter.params)


def test_the_head_and_the_labels_of_a_base_stay(tmp_path):
    base = family_models.random_model('bert', 'ForSequenceClassification')
    base.config.problem_type = 'multi_label_classification'
    base.save_pretrained(tmp_path / 'base')
    start = load_weights(tmp_path / 'base')
    adapted(base, 'ForSequenceClassification', {'target_modules': ['query']}).save_pretrained(
        tmp_path / 'adapter')
    found = with_adapter(start, tmp_path / 'adapter')
    assert (found.head, found.labels) == ('multi_label', ('a', 'b', 'c'))
    of_others = dataclasses.replace(start, head='regression', labels=('a', 'b'))
    found = with_adapter(of_others, tmp_path / 'adapter')
    assert (found.head, found.labels) == ('classification', ('LABEL_0', 'LABEL_1', 'LABEL_2'))


OF_TEXTS = {'max_seq_length': 20, 'truncation': 'longest_first', 'token_types': 'zeros'}


@pytest.mark.parametrize(('head', 'of_head'), [
    ('classification', {'num_texts': 2, 'activation': 'Identity'}),
    ('regression', {}),
])
def test_a_new_head_has_nothing_of_how_that_of_the_base_predicts(adapter_folder, head, of_head):
    base, folder = adapter_folder
    settings = {'num_texts': 2, 'activation': 'Identity'} | OF_TEXTS
    if head == 'regression':  # a cross-encoder's value, which another head's logits are not
        settings |= {'activation': 'Sigmoid'}
    start = dataclasses.replace(base, head=head, inference=settings)
    found = with_adapter(start, folder)
    assert found.head == 'classification'
    assert found.inference == OF_TEXTS | of_head


def test_an_adapter_of_an_encoder_needs_no_pooler(tmp_path):
    base = family_models.random_model('roberta', 'ForMaskedLM')
    base.save_pretrained(tmp_path / 'base')
    encoder = family_models.random_model('roberta', 'Model')
    encoder.load_state_dict(base.roberta.state_dict(), strict=False)
    inputs = family_models.random_inputs(encoder, 16)
    model = adapted(encoder, 'Model', {
        'target_modules': ['query'], 'task_type': 'FEATURE_EXTRACTION',
        'alpha_pattern': {'^encoder.layer.0.attention.self.query': 60}})
    model.save_pretrained(tmp_path / 'adapter')
    found = with_adapter(load_weights(tmp_path / 'base'), tmp_path / 'adapter')
    assert found.head == '' and not found.has('bert/pooler')
    assert_close(ours(found, inputs), theirs(model, inputs), inputs['attention_mask'] == 1)


@pytest.mark.parametrize(('kind', 'targets'), [
    ('ForSequenceClassification', ['Wqkv']),
    ('ForSequenceClassification', 'all-linear'),
    ('ForTokenClassification', ['Wi']),
])
def test_a_classifier_of_modernbert_keeps_the_dense_layer_of_a_masked_lm(kind, targets, tmp_path):
    family_models.random_model('modernbert', 'ForMaskedLM').save_pretrained(tmp_path / 'base')
    of_kind = type(family_models.random_model('modernbert', kind))
    base = of_kind.from_pretrained(tmp_path / 'base', num_labels=3)
    inputs = family_models.random_inputs(base, 16)
    model = adapted(base, kind, {'target_modules': targets})
    model.save_pretrained(tmp_path / 'adapter')
    found = with_adapter(load_weights(tmp_path / 'base'), tmp_path / 'adapter')
    assert_close(ours(found, inputs), theirs(model, inputs), inputs['attention_mask'] == 1)


def test_a_folder_names_its_base_and_a_run_keeps_the_adapter(tmp_path):
    base = family_models.random_model('bert', 'ForSequenceClassification')
    base.save_pretrained(tmp_path / 'base')
    base.name_or_path = str(tmp_path / 'base')
    model = adapted(base, 'ForSequenceClassification', {'target_modules': ['query']})
    model.save_pretrained(tmp_path / 'adapter')
    weights = load_weights(tmp_path / 'adapter', keep_adapter=True)
    write_run(tmp_path / 'run', weights)
    run = load_weights(tmp_path / 'run', keep_adapter=True)
    assert run.adapter.options == weights.adapter.options
    assert run.adapter.base == str(tmp_path / 'base')
    write_peft(tmp_path / 'again', run)
    config = json.loads((tmp_path / 'again' / 'adapter_config.json').read_text())
    assert config['base_model_name_or_path'] == str(tmp_path / 'base')
    assert_same_params(run.adapter.params, weights.adapter.params)
    assert_same(load_weights(tmp_path / 'run'), load_weights(tmp_path / 'adapter'))

    file = tmp_path / 'adapter' / 'adapter_config.json'
    of_itself = {'base_model_name_or_path': str(tmp_path / 'adapter')}
    file.write_text(json.dumps(json.loads(file.read_text()) | of_itself))
    with refused('which is an adapter itself'):
        load_weights(tmp_path / 'adapter')


@pytest.mark.parametrize(('fields', 'message'), [
    ({'peft_type': 'IA3'}, "peft_type='IA3' cannot be read: LORA can"),
    ({'bias': 'all'}, "bias='all' cannot be read"),
    ({'init_lora_weights': 'pissa'}, "init_lora_weights='pissa' cannot be read"),
    ({'lora_bias': True}, 'lora_bias=True cannot be read'),
    ({'fan_in_fan_out': True}, 'fan_in_fan_out=True cannot be read: merge the adapter'),
    ({'task_type': 'CAUSAL_LM'}, "task_type='CAUSAL_LM' cannot be read: SEQ_CLS"),
    ({'r': 4}, 'lora_A.weight is [3, 24], and by adapter_config.json'),
    ({'r': None}, 'lora_A.weight is [3, 24], and by adapter_config.json'),  # 8, as in peft
    ({'target_modules': ['value']}, "target_modules=['value'] leaves out bert.encoder.layer.0.att"),
    ({'target_modules': r'.*layer\.1\..*'}, 'leaves out bert.encoder.layer.0.attention.self.'),
    ({'exclude_modules': ['layer.1.attention.self.query']}, 'leaves out bert.encoder.layer.1.att'),
    ({'layers_to_transform': [0, 2, 3]}, 'layers_to_transform=[0, 2, 3] leaves out bert.encoder.'),
    ({'rank_pattern': {'(': 1}}, "rank_pattern has '(', which is no regular expression"),
    ({'lora_alpha': 'x'}, "lora_alpha='x' must be a number"),
])
def test_what_cannot_be_read_is_refused(adapter_folder, tmp_path, fields, message):
    base, folder = adapter_folder
    copy = tmp_path / 'copy'
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    config = json.loads((copy / 'adapter_config.json').read_text())
    (copy / 'adapter_config.json').write_text(json.dumps(config | fields))
    with refused(message):
        with_adapter(base, copy)


# What the adapters of jina-embeddings-v3 change.
OF_ALL = ['word_embeddings', 'token_type_embeddings', 'q_proj', 'k_proj', 'v_proj', 'o_proj',
          'fc1', 'fc2', 'dense']


@pytest.mark.parametrize(('variant', 'kind', 'fields'), [
    ('albert', 'ForSequenceClassification', {'target_modules': 'all-linear'}),
    ('electra small', 'ForTokenClassification', {
        'target_modules': ['query', 'embeddings_project'], 'use_dora': True}),
    ('jina', 'Model', {
        'target_modules': OF_ALL, 'task_type': 'FEATURE_EXTRACTION', 'lora_alpha': 1}),
    ('bert', 'ForSequenceClassification', {
        'target_modules': ['position_embeddings', 'value'], 'use_rslora': True}),
    ('nomic', 'ForTokenClassification', {'target_modules': ['word_embeddings', 'q_proj']}),
    ('gte', 'ForSequenceClassification', {
        'target_modules': ['token_type_embeddings', 'word_embeddings', 'q_proj']}),
    # Beside these, peft writes the base's own table.
    ('eurobert', 'ForSequenceClassification', {'target_modules': ['embed_tokens', 'q_proj']}),
    ('ultrabert', 'ForTokenClassification', {'target_modules': ['embed_tokens', 'q_proj']}),
])
def test_adapters_of_embeddings_are_in_the_parameters(variant, kind, fields, tmp_path, capsys):
    base = family_models.random_model(variant, kind)
    base.save_pretrained(tmp_path / 'base')
    inputs = family_models.random_inputs(base, 16)
    model = adapted(base, kind, fields)
    model.save_pretrained(tmp_path / 'adapter')
    found = with_adapter(load_weights(tmp_path / 'base'), tmp_path / 'adapter', keep_adapter=True)
    assert f"the adapter of {tmp_path / 'adapter'} is in the weights now" in capsys.readouterr().err
    assert_close(ours(found, inputs), theirs(model, inputs), inputs['attention_mask'] == 1)
    with refused('has no adapter beside its kernels: --to huggingface writes all of it'):
        write_peft(tmp_path / 'ours', found)


@pytest.mark.parametrize(('kind', 'fields', 'message'), [
    ('ForMaskedLM', {'target_modules': ['word_embeddings', 'query']},
     'word_embeddings.lora_embedding_A has no place'),
    ('ForTokenClassification', {'target_modules': ['word_embeddings', 'query'], 'use_dora': True},
     'word_embeddings.lora_magnitude_vector has no place'),
    ('Model', {'target_modules': ['word_embeddings']}, 'has no adapter of the layers'),
    ('ForSequenceClassification', {'target_modules': ['classifier', 'query']},
     'has adapters of classifier: those that can be read'),
])
def test_a_module_without_a_place_is_refused_by_its_name(kind, fields, message, tmp_path):
    base = family_models.random_model('bert', kind)
    base.save_pretrained(tmp_path / 'base')
    model = adapted(base, kind, {**fields, 'task_type': None})
    model.save_pretrained(tmp_path / 'adapter')
    with refused(message, '(merge_and_unload)'):
        with_adapter(load_weights(tmp_path / 'base'), tmp_path / 'adapter')


def test_a_table_that_was_trained_beside_its_adapter_is_refused(tmp_path):
    base = family_models.random_model('eurobert', 'Model')
    base.save_pretrained(tmp_path / 'base')
    fields = {'target_modules': ['embed_tokens', 'q_proj'], 'task_type': 'FEATURE_EXTRACTION'}
    adapted(base, 'Model', fields).save_pretrained(tmp_path / 'adapter')
    file = tmp_path / 'adapter' / 'adapter_model.safetensors'
    tensors = load_file(file)
    (name,) = (name for name in tensors if name.endswith('.base_layer.weight'))
    tensors[name][7] += 1
    save_file(tensors, file, {'format': 'pt'})
    with refused('embed_tokens.base_layer.weight is not the table', '(merge_and_unload)'):
        with_adapter(load_weights(tmp_path / 'base'), tmp_path / 'adapter')


def test_a_head_of_no_named_class_is_refused(adapter_folder, tmp_path):
    base, folder = adapter_folder
    file = shutil.copytree(folder, tmp_path / 'copy') / 'adapter_config.json'
    file.write_text(json.dumps(json.loads(file.read_text()) | {'task_type': None}))
    without_head = dataclasses.replace(base, head='')
    with refused('classifier.bias has no place', 'say in', "'task_type': SEQ_CLS, TOKEN_CLS"):
        with_adapter(without_head, tmp_path / 'copy')


def test_a_pickle_is_refused(adapter_folder, tmp_path):
    base, folder = adapter_folder
    copy = shutil.copytree(folder, tmp_path / 'copy')
    (copy / 'adapter_model.safetensors').rename(copy / 'adapter_model.bin')
    with refused('adapter_model.bin is not read, as a pickle can run', 'save_pretrained(FOLDER)'):
        with_adapter(base, copy)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_an_adapter_in_fewer_bits(adapter_folder, tmp_path, dtype):
    start, folder = adapter_folder
    copy = shutil.copytree(folder, tmp_path / 'copy')
    file = copy / 'adapter_model.safetensors'
    tensors = {name: x.to(getattr(torch, dtype)) for name, x in load_file(file).items()}
    save_file(tensors, file, {'format': 'pt'})
    base = family_models.random_model('bert', 'ForSequenceClassification')
    model = peft.PeftModel.from_pretrained(base, copy).eval()
    inputs = family_models.random_inputs(base, 16)
    found = ours(with_adapter(start, copy), inputs)
    assert_close(found, theirs(model, inputs), inputs['attention_mask'] == 1)


def test_an_adapter_of_a_masked_lm(tmp_path):
    base = family_models.random_model('bert', 'ForMaskedLM')
    base.save_pretrained(tmp_path / 'base')
    inputs = family_models.random_inputs(base, 16)
    model = adapted(base, 'ForMaskedLM', {'target_modules': ['query', 'output.dense']})
    model.save_pretrained(tmp_path / 'adapter')
    found = with_adapter(load_weights(tmp_path / 'base'), tmp_path / 'adapter')
    assert found.head == 'pretraining'
    assert_close(ours(found, inputs), theirs(model, inputs), inputs['attention_mask'] == 1)


def test_an_adapter_of_another_model_is_refused(adapter_folder):
    base, folder = adapter_folder
    other = dataclasses.replace(base, model=base.model | {'hidden_size': 48})
    with refused('is the adapter of this model?'):
        with_adapter(other, folder)


@pytest.fixture(scope='module')
def adapter_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('adapter')
    base = family_models.random_model('bert', 'ForSequenceClassification')
    base.save_pretrained(folder / 'base')
    model = adapted(base, 'ForSequenceClassification', {'target_modules': ['query']})
    model.save_pretrained(folder / 'adapter')
    return load_weights(folder / 'base'), folder / 'adapter'
