"""The benchmark MTEB runs a model on its own mock tasks, without a network."""

import numpy as np
import pytest

import bert_jax
from bert_jax.runtime.errors import InputError
from tests.predict import tiny
from tests.predict.test_sentence_transformers import MODEL, PROMPTS, folder, mean_of  # noqa: F401

pytestmark = pytest.mark.extras
MOCKS = (
    'MockRetrievalTask', 'MockSTSTask', 'MockClassificationTask', 'MockPairClassificationTask',
    'MockClusteringFastTask', 'MockBitextMiningTask')


def test_the_tasks_of_the_benchmark_run(folder):  # noqa: F811
    mteb = pytest.importorskip('mteb')
    from mteb.mocks import mock_tasks

    path = folder(**{MODEL: PROMPTS | {'default_prompt_name': None}})
    model = bert_jax.mteb_model(path, name='somebody/tiny')
    tasks = [getattr(mock_tasks, name)() for name in MOCKS if hasattr(mock_tasks, name)]
    assert len(tasks) >= 5
    result = mteb.evaluate(model, tasks, cache=None, show_progress_bar=False)
    assert result.model_name == 'somebody/tiny'
    assert len(result.task_results) == len(tasks)
    for task in result.task_results:
        assert np.isfinite(task.get_score())


def test_prompts_are_those_of_queries_and_documents(folder):  # noqa: F811
    pytest.importorskip('mteb')
    from mteb.mocks.mock_tasks import MockRetrievalTask
    from mteb.types import PromptType

    path = folder(**{MODEL: PROMPTS | {'default_prompt_name': None}})
    model = bert_jax.mteb_model(path)
    plain = bert_jax.load(path)

    def encoded(prompt_type):
        return model.encode(
            [{'text': ['a b']}, {'text': ['c']}], task_metadata=MockRetrievalTask.metadata,
            hf_split='test', hf_subset='default', prompt_type=prompt_type)

    np.testing.assert_allclose(
        encoded(PromptType.query)[0], mean_of(plain, 'q. a b'), rtol=1e-4, atol=1e-5)
    documents = encoded(PromptType.document)
    np.testing.assert_allclose(documents[0], mean_of(plain, 'a b'), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(encoded(None), documents, rtol=1e-5)
    cosines = model.similarity(documents, documents)
    np.testing.assert_allclose(np.diag(cosines), 1, rtol=1e-5)
    np.testing.assert_allclose(
        model.similarity_pairwise(documents, documents[::-1]), cosines[[0, 1], [1, 0]], rtol=1e-5)


def test_a_default_prompt_is_for_texts_that_are_neither(folder):  # noqa: F811
    pytest.importorskip('mteb')
    from mteb.mocks.mock_tasks import MockRetrievalTask
    from mteb.types import PromptType

    path = folder(**{MODEL: {'prompts': {'usual': 'q. '}, 'default_prompt_name': 'usual'}})
    model = bert_jax.mteb_model(path)
    for prompt_type, text in (
            (None, 'q. a b'), (PromptType.query, 'a b'), (PromptType.document, 'a b')):
        (found,) = model.encode(
            [{'text': ['a b']}], task_metadata=MockRetrievalTask.metadata, hf_split='test',
            hf_subset='default', prompt_type=prompt_type)
        expected = mean_of(bert_jax.load(path), text)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_without_the_package_it_is_named(monkeypatch):
    monkeypatch.setitem(__import__('sys').modules, 'mteb', None)
    with pytest.raises(InputError, match=r'\[mteb\]'):
        bert_jax.mteb_model(tiny.RECORDED / 'base')
