"""Each class that transformers has: the same outputs, and back into transformers."""

import unittest

import numpy as np
import pytest

import bert_jax
from tests.api.recorded_models import assert_same_outputs, outputs

pytestmark = [pytest.mark.slow, pytest.mark.extras]

pytest.importorskip('torch', reason='the extra [parity] is not installed')
transformers = pytest.importorskip('transformers', reason='the extra [parity] is not installed')
from tests.foreign import family_models  # noqa: E402

HEADS = {
    'Model': 'encoder',
    'ForMaskedLM': 'masked_lm',
    'ForPreTraining': 'pretraining',
    'ForNextSentencePrediction': 'next_sentence',
    'ForSequenceClassification': 'classification',
    'ForTokenClassification': 'token_classification',
    'ForMultipleChoice': 'multiple_choice',
    'ForQuestionAnswering': 'question_answering',
}
CLASSES = [
    *(('bert', kind) for kind in HEADS),
    *((variant, kind) for variant in ('roberta', 'distilbert', 'electra small')
      for kind in ('Model', 'ForMaskedLM', 'ForSequenceClassification')),
    ('electra', 'ForPreTraining'),
    ('modernbert', 'ForMaskedLM'),
    ('modernbert', 'ForTokenClassification'),
]


def with_states(model, inputs):
    """transformers' outputs by name, with tuples of hidden states and attentions."""
    model.set_attn_implementation('eager')  # others do not return attentions
    torch = family_models.torch
    with torch.no_grad():
        found = model(**family_models.arguments_of(model, inputs), output_hidden_states=True,
                      output_attentions=True)
    outputs_by_name = {}
    for name, x in found.items():
        if isinstance(x, tuple):
            outputs_by_name[name] = tuple(np.asarray(of_layer) for of_layer in x)
        else:
            outputs_by_name[name] = np.asarray(x)
    outputs_by_name.pop('cross_attentions', None)  # an empty tuple
    return outputs_by_name


@pytest.mark.parametrize('variant, kind', CLASSES)
def test_a_class_of_transformers_here_and_back(variant, kind, tmp_path):
    model = family_models.random_model(variant, kind)
    model.save_pretrained(tmp_path / 'theirs')
    inputs = family_models.random_inputs(model, 16)
    expected = family_models.outputs_of(model, inputs)

    bert = bert_jax.from_pretrained(tmp_path / 'theirs')
    is_discriminator = variant.startswith('electra') and kind == 'ForPreTraining'
    assert bert.module.head == ('replaced_tokens' if is_discriminator else HEADS[kind])
    assert not bert.fresh
    assert_same_outputs(outputs(bert, inputs), expected, inputs)

    bert.save(tmp_path / 'ours')
    with unittest.TestCase().assertNoLogs('transformers', 'WARNING'):
        back = type(model).from_pretrained(tmp_path / 'ours', local_files_only=True).eval()
    tensors = back.state_dict()
    assert tensors.keys() == model.state_dict().keys()
    for name, x in model.state_dict().items():
        np.testing.assert_array_equal(tensors[name], x, err_msg=name)
    found = family_models.outputs_of(back, inputs)
    for name, x in expected.items():  # torch may add in another order the second time
        np.testing.assert_allclose(found[name], x, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize('variant, kind', [('bert', 'Model'), ('electra small', 'ForMaskedLM')])
def test_hidden_states_and_attentions_are_those_of_transformers(variant, kind, tmp_path):
    model = family_models.random_model(variant, kind)
    model.save_pretrained(tmp_path)
    inputs = family_models.random_inputs(model, 16)
    expected = with_states(model, inputs)
    bert = bert_jax.from_pretrained(tmp_path)
    found = outputs(bert, inputs, output_hidden_states=True, output_attentions=True)
    assert found.keys() == expected.keys()
    is_token = inputs['attention_mask'] == 1
    for a, b in zip(found['hidden_states'], expected['hidden_states'], strict=True):
        np.testing.assert_allclose(np.asarray(a)[is_token], b[is_token], rtol=0, atol=1e-5)
    for a, b in zip(found['attentions'], expected['attentions'], strict=True):
        by_query_a = np.asarray(a).transpose(0, 2, 1, 3)
        by_query_b = b.transpose(0, 2, 1, 3)
        np.testing.assert_allclose(
            by_query_a[is_token], by_query_b[is_token], rtol=0, atol=1e-5)
