"""What the gates of a pre-training run are told of its text: chance, frequencies, repeats."""

import math
import random
from collections import Counter

import pytest

from bert_jax.config import complete, default_config
from bert_jax.tasks.pretrain import PretrainTask
from tests.tasks.test_packing_changes_nothing import CONFIG
from tests.tasks.test_pretrain_steps import PHASES

WORDS = [a + b + c for a in 'bdfgk' for b in 'aeiou' for c in 'lmnrst']


def gates_of(folder, documents, **how):
    """Of a run on these documents of sentences."""
    (folder / 'text.txt').write_text('\n\n'.join('\n'.join(lines) for lines in documents))
    (folder / 'vocab.txt').write_text(
        '\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS]))
    c = default_config('pretrain')
    c.model.name, c.data.source = 'tiny', f'lines:{folder}/text.txt'
    c.data.vocab_file, c.data.dir = str(folder / 'vocab.txt'), str(folder)
    task = PretrainTask(complete(c))
    return task.gates(task.objective(CONFIG), PHASES, **{'fresh': True, 'settled': 3} | how)


def names(alarms):
    return [alarm.name for alarm in alarms]


def learning(loss, count=1):
    return [{'loss': loss, 'grad_norm': 1.0}] * count


@pytest.fixture(scope='module')
def documents():
    rng = random.Random(0)
    return [[' '.join(rng.choices(WORDS, k=12)) for _ in range(6)] for _ in range(60)]


def test_a_run_is_held_to_its_own_chance_and_frequencies(documents, tmp_path):
    chance = math.log(CONFIG.vocab_size) + math.log(2)
    counts = Counter(word for lines in documents for line in lines for word in line.split())
    shares = [count / counts.total() for count in counts.values()]
    by_frequency = -sum(share * math.log(share) for share in shares)
    gates = gates_of(tmp_path, documents)
    assert names(gates.trained(1, learning(chance + 0.4), {})) == []
    stuck = {'mlm_loss': by_frequency}
    assert names(gates.trained(2, learning(chance), stuck)) == [], 'it has not settled'
    assert names(gates.trained(3, learning(chance), {'mlm_loss': by_frequency - 0.2})) == []
    (alarm,) = gates.trained(4, learning(chance), stuck)
    assert alarm.name == 'plateau' and f'frequency has {by_frequency:.2f}:' in alarm.line
    assert names(gates_of(tmp_path, documents).trained(1, learning(chance + 0.6), {})) == [
        'first_loss']
    goes_on = gates_of(tmp_path, documents, fresh=False)
    assert names(goes_on.trained(900, learning(chance + 0.6), {})) == []


def test_sentences_in_two_documents_are_told_once_when_a_run_begins(documents, tmp_path):
    rng = random.Random(1)
    again = [rng.sample(lines, k=len(lines)) for lines in documents[:30]]  # no document is equal
    assert again[0] != documents[0]
    chance = math.log(CONFIG.vocab_size) + math.log(2)
    gates = gates_of(tmp_path, documents + again)
    (alarm,) = gates.trained(1, learning(chance), {})
    assert alarm.name == 'repeats' and alarm.value == pytest.approx(1 / 3, abs=0.02)
    assert names(gates.trained(2, learning(chance), {})) == []
    goes_on = gates_of(tmp_path, documents + again, fresh=False)
    assert names(goes_on.trained(900, learning(chance), {})) == []
