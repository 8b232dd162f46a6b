"""Pre-training that goes on from published weights, on other text and with words added."""

import dataclasses

import numpy as np
import pytest

from bert_jax.config import complete, default_config
from bert_jax.tasks.opening import open_task
from bert_jax.weights import load_weights
from bert_jax.weights.run_directory import write_run
from tests.predict.tiny import VOCAB, pretraining_weights, random_texts

pytestmark = pytest.mark.slow

ADDED = ('catbird', 'thea', 'greenred')


@pytest.fixture(scope='module')
def continued(tmp_path_factory, run_main):
    """(published weights, folder of a run that went on from them with words added)."""
    folder = tmp_path_factory.mktemp('continued')
    weights = pretraining_weights(folder)
    write_run(folder / 'published', weights)
    texts = random_texts(300)
    text = [f'{a} {b}. {w} {c}.' for a, b, c, w in zip(
        texts[::3], texts[1::3], texts[2::3], ['cated', *ADDED] * 25, strict=True)]
    (folder / 'text.txt').write_text('\n\n'.join(text))
    (folder / 'words.txt').write_text('\n'.join(['Cated', *ADDED]))
    process = run_main(
        '--config=configs/continue_pretrain.py', f'--config.init_checkpoint={folder}/published',
        f'--config.data.source={folder}/text.txt', f'--config.data.dir={folder}/cache',
        f'--config.data.add_tokens={folder}/words.txt', '--config.data.max_seq_length=16',
        '--config.data.max_predictions_per_seq=4', '--config.data.held_out=0.2',
        '--config.train.batch_size=8', '--config.train.eval_batch_size=8',
        '--config.train.steps=2', '--config.train.eval_every=0', '--config.train.save_every=0',
        # So small a rate that every parameter stays as it started.
        '--config.optimizer.learning_rate=1e-30', f'--workdir={folder}/run',
    )
    assert '4 tokens that the weights do not know start at the mean' in process.stdout
    return weights, folder / 'run'


def test_it_starts_from_all_that_was_published(continued):
    published, run = continued
    found = load_weights(run)
    assert found.vocab_file.read_text().split() == [*VOCAB, 'cated', *ADDED]
    old = len(VOCAB)
    for name, x in published.params.items():  # the position table too, longer than the rows
        np.testing.assert_array_equal(found.params[name][:old] if len(x) == old else
                                      found.params[name], x, err_msg=name)
    cat, ed = VOCAB.index('cat'), VOCAB.index('##ed')
    for name in ('bert/embeddings/word_embeddings', 'cls/predictions/output_bias'):
        x = published.params[name]
        assert len(found.params[name]) == old + 4
        np.testing.assert_allclose(found.params[name][old], (x[cat] + x[ed]) / 2, rtol=1e-6)
        np.testing.assert_array_equal(found.params[name][old + 1], x[VOCAB.index('[UNK]')])


def test_words_are_added_for_downstream_tasks_and_not_twice(continued, tmp_path):
    published, run = continued
    (tmp_path / 'CoLA').mkdir()
    for split in ('train', 'dev'):
        (tmp_path / 'CoLA' / f'{split}.tsv').write_text('x\t1\t\tthe dogbird sees cated\n' * 4)
    (tmp_path / 'words.txt').write_text('dogbird\ncated\n')
    config = default_config()
    config.task = 'cola'
    config.model.name = ''
    config.data.source = str(tmp_path)
    config.data.add_tokens = str(tmp_path / 'words.txt')
    config.data.dir = str(tmp_path / 'cache')
    config.train.steps = 1
    job = open_task(complete(config, load_weights(run)))
    tokens = job.vocab_path.read_text().split()
    assert tokens == [*VOCAB, 'cated', *ADDED, 'dogbird'] and job.vocab_size == len(tokens)
    plain = open_task(complete(config, dataclasses.replace(published, lowercase=False)))
    assert plain.vocab_size == len(VOCAB) + 2
    # What has its words in order from the run itself is not written anew.
    config.data.vocab_file = str(job.vocab_path)
    again = open_task(complete(config, load_weights(run)))
    assert again.vocab_path == job.vocab_path
    assert again.identity()['vocabulary'] == job.identity()['vocabulary']
    assert plain.identity()['vocabulary'] != job.identity()['vocabulary']
