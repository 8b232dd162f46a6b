"""Runs that start from a pre-trained one: pre-training, fine-tuning, evaluation, prediction.

They run in this process, on one of its devices: the command line has its own tests, and short runs
spend most of their time on starting a program, or on compiling for eight devices.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from bert_jax import convert
from bert_jax.foreign import load_weights
from bert_jax.heads import tokens
from bert_jax.loading import load
from bert_jax.run.model import write_run
from bert_jax.runtime.checksum import check_digest
from bert_jax.runtime.errors import InputError, Stopped
from bert_jax.tasks.squad_scores import NEVER_ANSWER
from bert_jax.train import compiling
from tests.conftest import ROOT
from tests.in_process import Ended, evaluate, run, run_first_steps
from tests.predict.tiny import VOCAB, pretraining_weights, random_texts
from tests.shared_steps import shared_steps
from tests.tiny_runs import TINY, WORDS, documents, one_device, sentence, write_cola

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('kernels_of_numpy')]

# All batches have one shape, so one program is compiled; the runs of GLUE are packed.
LENGTH = '--config.data.max_seq_length=48'
SHORT = (
    LENGTH, '--config.train.batch_size=8', '--config.train.log_every=2',
    '--config.optimizer.learning_rate=1e-3',
)
UNPACKED = (*SHORT, '--config.data.packing=False')
NO_CONFIG = TINY[1:]
NO_MODEL = TINY[5:]  # nor a vocabulary


@pytest.fixture
def refusal_of(tmp_path, capsys):
    """A function that runs bert_jax.evaluate, which must fail, and returns its line of error."""
    def run_and_fail(*args):
        with pytest.raises(SystemExit, match='2'):
            evaluate(*args, workdir=tmp_path / 'refused')
        error = capsys.readouterr().err
        assert error.count('\n') == 1
        return error
    return run_and_fail


def read_json(path):
    return json.loads(path.read_text())


@pytest.fixture(scope='module')
def pretrained(tmp_path_factory):
    """The directory of a tiny model with its vocabulary, pre-trained for two steps."""
    folder = tmp_path_factory.mktemp('pretrained')
    (folder / 'text.txt').write_text(documents(40))
    run('tiny_pretrain.py', *NO_CONFIG, f'--config.data.source={folder}/text.txt',
        f'--config.data.dir={folder}/cache', '--config.train.steps=2', workdir=folder / 'run')
    return folder / 'run'


@dataclasses.dataclass
class ColaRun:
    """A fine-tuning on CoLA that nothing interrupted."""

    glue: Path  # the folder with the data
    workdir: Path
    result: dict[str, Any]
    said: str

    def best_step(self):
        return self.result['step']

    def newest_checkpoint(self):
        steps = [int(path.name) for path in (self.workdir / 'checkpoints').iterdir()]
        return max(steps)


def on_cola(glue, start):
    """The config and the flags of a fine-tuning on CoLA."""
    return (
        'glue.py:cola', f'--config.init_checkpoint={start}', f'--config.data.source={glue}', *SHORT)


def fine_tune_on_cola(glue, start, *flags, workdir, stop_at=None):
    return run(*on_cola(glue, start), *flags, workdir=workdir, stop_at=stop_at)


@pytest.fixture(scope='module')
def cola(pretrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp('cola')
    glue = write_cola(folder / 'glue')
    ended = fine_tune_on_cola(glue, pretrained, workdir=folder / 'run')
    return ColaRun(glue, folder / 'run', ended.result, ended.said)


def test_a_fine_tuning_says_what_starts_fresh_and_what_it_leaves_out(cola):
    assert 'starts fresh: classifier/...' in cola.said
    assert 'left unused: cls/' in cola.said


def test_a_fine_tuning_keeps_its_best_model(cola):
    assert {'step', 'eval/matthews', 'last/matthews'} <= set(cola.result)
    best = f'step {cola.best_step():,}'
    assert best in load_weights(cola.workdir).source


def test_a_fine_tuning_writes_a_line_for_each_row_and_a_header(cola):
    dev = (cola.workdir / 'dev_predictions.tsv').read_text()
    test = (cola.workdir / 'test_predictions.tsv').read_text()
    assert dev.count('\n') == 1 + 20
    assert test.count('\n') == 1 + 7


def test_an_evaluation_gives_the_score_and_the_predictions_of_the_run(cola, tmp_path):
    dev_file = f'--config.data.eval_source={cola.glue}/CoLA/dev.tsv'
    again = evaluate(cola.workdir, dev_file, workdir=tmp_path)
    expected = cola.result['eval/matthews']
    assert again.result['eval/matthews'] == pytest.approx(expected, abs=1e-6)
    written = (tmp_path / 'dev_predictions.tsv').read_text()
    assert written == (cola.workdir / 'dev_predictions.tsv').read_text()


def test_a_fine_tuning_resumed_without_its_start_equals_an_uninterrupted_one(
    cola, pretrained, tmp_path
):
    """A run has all that it needs to resume."""
    start = shutil.copytree(pretrained, tmp_path / 'start')
    workdir = tmp_path / 'run'
    past_the_first_epoch = 8
    with pytest.raises(Stopped):
        fine_tune_on_cola(cola.glue, start, workdir=workdir, stop_at=past_the_first_epoch)
    shutil.rmtree(start)
    resumed = fine_tune_on_cola(cola.glue, start, workdir=workdir)
    assert 'resuming at step' in resumed.said
    assert 'note:' not in resumed.said
    assert resumed.result == cola.result


def test_a_run_records_the_step_of_the_best_model_that_it_starts_from(cola, tmp_path):
    run_first_steps(*on_cola(cola.glue, cola.workdir), workdir=tmp_path, num_steps=1)
    assert read_json(tmp_path / 'config.json')['init_step'] == cola.best_step()


def test_a_run_records_the_step_of_the_checkpoint_that_it_starts_from(cola, tmp_path):
    newest = cola.newest_checkpoint()
    start = cola.workdir / 'checkpoints' / str(newest)
    run_first_steps(*on_cola(cola.glue, start), workdir=tmp_path, num_steps=1)
    assert read_json(tmp_path / 'config.json')['init_step'] == newest


@dataclasses.dataclass
class DebugRun:
    """A fine-tuning on CoLA with `debug` and frozen parameters; `again` goes on with it."""

    start: Path
    workdir: Path
    result: dict[str, Any]
    again: Callable[..., Ended]


@pytest.fixture(scope='module')
def debug_run(pretrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp('debug')
    glue = write_cola(folder / 'glue', dev=2000)
    start = shutil.copytree(pretrained, folder / 'start')
    go_on = functools.partial(
        fine_tune_on_cola, glue, start, '--config.debug=True',
        '--config.optimizer.frozen=embeddings|layer_0/attention')
    ended = go_on(workdir=folder / 'run')
    return DebugRun(start, folder / 'run', ended.result, go_on)


def test_a_debug_run_is_three_steps(debug_run):
    assert debug_run.result['step'] == 3


def test_a_debug_run_evaluates_a_part_of_the_examples(debug_run):
    _, *examples = (debug_run.workdir / 'dev_examples.csv').read_text().splitlines()
    scored = [line for line in examples if not line.endswith(',0.5,0.5')]
    assert 100 < len(scored) < 1900


def test_frozen_parameters_stay_as_they_started_and_others_do_not(debug_run, pretrained):
    before = load_weights(pretrained).params
    after = load_weights(debug_run.workdir).params
    for name in after.keys() & before.keys():
        is_frozen = 'embeddings' in name or 'layer_0/attention' in name
        assert (before[name] == after[name]).all() == is_frozen, name


def test_a_fine_tuning_that_does_not_fit_is_refused_before_it_starts(debug_run, tmp_path):
    too_small = mock.patch.object(compiling, 'device_memory', lambda *_: 10**5)
    message = r'batch 8\): train .*accumulation_steps is enough'
    with too_small, pytest.raises(InputError, match=message):
        debug_run.again(workdir=tmp_path)


@contextlib.contextmanager
def renamed(path, name):
    """Gives a file or folder another name for a while."""
    other = path.rename(path.with_name(name))
    try:
        yield
    finally:
        other.rename(path)


def test_a_resumed_run_says_that_its_start_has_trained_on(debug_run, tmp_path):
    workdir = shutil.copytree(debug_run.workdir, tmp_path / 'run')
    with renamed(debug_run.start / 'checkpoints' / '2', '7'):
        ended = debug_run.again(workdir=workdir)
    assert 'step 2 of init_checkpoint, which is at 7 now' in ended.said


@dataclasses.dataclass
class Exports:
    """The run on CoLA in other formats, and the flags with which these are scored."""

    huggingface: Path
    bert_jax: Path
    without_labels: Path  # in Hugging Face's format, with the names LABEL_0 and LABEL_1
    config: tuple[str, ...]


@pytest.fixture(scope='module')
def exports(cola, tmp_path_factory):
    folder = tmp_path_factory.mktemp('exports')
    for name in ('huggingface', 'bert_jax'):
        convert.main([str(cola.workdir), str(folder / name), '--to', name])
    without_labels = shutil.copytree(folder / 'huggingface', folder / 'without_labels')
    config = read_json(without_labels / 'config.json')
    config['id2label'] = {'0': 'LABEL_0', '1': 'LABEL_1'}
    config['label2id'] = {'LABEL_0': 0, 'LABEL_1': 1}
    (without_labels / 'config.json').write_text(json.dumps(config))
    return Exports(folder / 'huggingface', folder / 'bert_jax', without_labels, (
        f'--config={ROOT}/configs/glue.py:cola', f'--config.data.source={cola.glue}', LENGTH))


@pytest.mark.parametrize('name', ['huggingface', 'bert_jax'])
def test_an_exported_model_has_the_score_of_its_run(cola, exports, tmp_path, name):
    again = evaluate(getattr(exports, name), *exports.config, workdir=tmp_path)
    expected = cola.result['eval/matthews']
    assert again.result['eval/matthews'] == pytest.approx(expected, abs=1e-6)


def test_a_model_without_names_of_labels_is_scored_by_their_positions(cola, exports, tmp_path):
    again = evaluate(
        exports.without_labels, *exports.config, '--labels_by_position', workdir=tmp_path)
    expected = cola.result['eval/matthews']
    assert again.result['eval/matthews'] == pytest.approx(expected, abs=1e-6)


def test_a_model_without_names_of_labels_is_not_scored_by_guess(exports, refusal_of):
    assert '--labels_by_position' in refusal_of(exports.without_labels, *exports.config)


def test_labels_that_have_names_are_not_taken_by_position(cola, refusal_of):
    assert 'LABEL_0 to LABEL_' in refusal_of(cola.workdir, '--labels_by_position')


def test_a_model_without_its_run_is_not_scored_without_a_config(exports, refusal_of):
    assert 'it was converted' in refusal_of(exports.bert_jax)


def test_a_model_with_another_head_is_not_scored(pretrained, exports, refusal_of):
    assert "has the head 'pretraining'" in refusal_of(pretrained, *exports.config)


def squad_paragraph(rng, number):
    """A paragraph of different words with three questions, of which the last has no answer."""
    context = ' '.join(rng.sample(WORDS, rng.randint(30, 60)))
    words = [rng.choice(context.split()) for _ in range(3)]
    questions = []
    for index, word in enumerate(words):
        is_impossible = index == 2
        answer = {'text': word, 'answer_start': context.index(word)}
        questions.append({
            'id': f'{number}-{index}',
            'question': sentence(rng) + '?',
            'is_impossible': is_impossible,
            'answers': [] if is_impossible else [answer],
        })
    return {'context': context, 'qas': questions}


@dataclasses.dataclass
class SquadRuns:
    """Two runs on SQuAD 2.0 that differ in their seed."""

    first: Path
    second: Path
    second_result: dict[str, Any]


@pytest.fixture(scope='module')
def squad(pretrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp('squad')
    rng = random.Random(2)
    paragraphs = [squad_paragraph(rng, number) for number in range(4)]
    content = {'version': '2.0', 'data': [{'title': 'x', 'paragraphs': paragraphs}]}
    for part in ('train', 'dev'):
        (folder / f'{part}-v2.0.json').write_text(json.dumps(content))

    def run_with_seed(seed, workdir):
        return run(
            'squad.py:v2', f'--config.init_checkpoint={pretrained}', f'--config.seed={seed}',
            f'--config.data.source={folder}', '--config.squad.doc_stride=16', *UNPACKED,
            workdir=workdir)

    run_with_seed(0, folder / 'first')
    second = run_with_seed(1, folder / 'second')
    return SquadRuns(folder / 'first', folder / 'second', second.result)


def edited_copy(run, folder, section, **changes):
    """A copy of a run with other fields in a section of its config.json."""
    shutil.copytree(run, folder, dirs_exist_ok=True)
    fields = check_digest(read_json(folder / 'config.json'), folder)
    fields[section].update(changes)
    (folder / 'config.json').write_text(json.dumps(fields))
    return folder


def start_logits(*runs, workdir):
    """Start logits of the candidates of a model or an ensemble, by question and text."""
    ended = evaluate(*runs, workdir=workdir)
    assert {'eval/exact_match', 'eval/f1'} <= set(ended.result)
    logits = collections.defaultdict(list)
    for question, candidates in read_json(workdir / 'nbest_predictions.json').items():
        for candidate in candidates:
            logits[question, candidate['text']].append(candidate['start_logit'])
    return logits


def test_an_ensemble_writes_the_mean_of_the_logits(squad, tmp_path):
    first = start_logits(squad.first, workdir=tmp_path)
    second = start_logits(squad.second, workdir=tmp_path)
    both = start_logits(squad.first, squad.second, workdir=tmp_path)
    num_compared = 0
    for question, text in both:
        key = question, text
        is_unique = len(first[key]) == len(second[key]) == len(both[key]) == 1
        if text and is_unique:
            num_compared += 1
            assert first[key] != second[key]
            expected = np.mean([first[key], second[key]], axis=0)
            np.testing.assert_allclose(both[key], expected, atol=1e-4)
    assert num_compared > 10


def test_models_with_other_windows_are_no_ensemble(squad, tmp_path, refusal_of):
    other = edited_copy(squad.second, tmp_path / 'other', 'squad', doc_stride=64)
    assert 'squad.doc_stride=16' in refusal_of(squad.first, other)


def test_models_with_other_tokenizers_are_no_ensemble(squad, tmp_path, refusal_of):
    other = shutil.copytree(squad.second, tmp_path / 'other')
    (other / 'tokenizer_config.json').write_text('{"strip_accents": false}')
    assert 'tokenizer_config.json' in refusal_of(squad.first, other)


def test_a_run_on_squad_keeps_what_inference_needs(squad):
    inference = read_json(squad.second / 'config.json')['inference']
    assert inference.pop('token_types') in ('template', 'segments')  # the same for BERT
    assert inference == {
        'truncation': 'google',
        'max_seq_length': 48,
        'doc_stride': 16,
        'max_query_length': 64,
        'null_threshold': squad.second_result['eval/null_threshold'],
    }


def test_a_run_on_squad_writes_the_files_of_the_official_script(squad):
    predictions = read_json(squad.second / 'predictions.json')
    assert len(predictions) == 12
    assert all(isinstance(answer, str) for answer in predictions.values())
    assert set(read_json(squad.second / 'null_odds.json')) == set(predictions)


ALWAYS_ANSWER = 1e5


@dataclasses.dataclass
class ScoredWithThreshold:
    """An evaluation of a run with another threshold in its config.json."""

    threshold: float
    result: dict[str, Any]
    said: str
    predictions: dict[str, str]


@pytest.fixture(scope='module')
def without_answers_then_with(squad, tmp_path_factory):
    """Evaluations with the thresholds NEVER_ANSWER and ALWAYS_ANSWER, written to one folder."""
    folder = tmp_path_factory.mktemp('thresholds')
    scored = []
    for threshold in (NEVER_ANSWER, ALWAYS_ANSWER):
        other = edited_copy(squad.second, folder / 'run', 'inference', null_threshold=threshold)
        ended = evaluate(other, workdir=folder / 'out')
        predictions = read_json(folder / 'out' / 'predictions.json')
        scored.append(ScoredWithThreshold(threshold, ended.result, ended.said, predictions))
    return scored


def test_a_run_is_scored_with_the_threshold_of_its_config(without_answers_then_with):
    for scored in without_answers_then_with:
        assert scored.result['eval/null_threshold'] == scored.threshold


def test_no_question_is_answered_with_the_lowest_threshold(without_answers_then_with):
    without, _ = without_answers_then_with
    assert not any(without.predictions.values())
    assert without.result['eval/NoAns_f1'] == 100


def test_questions_are_answered_with_a_high_threshold(without_answers_then_with):
    _, with_answers = without_answers_then_with
    assert any(with_answers.predictions.values())
    assert with_answers.result['eval/NoAns_f1'] == 0


def test_the_best_f1_does_not_depend_on_the_threshold(without_answers_then_with):
    without, with_answers = without_answers_then_with
    assert with_answers.result['eval/best_f1'] == without.result['eval/best_f1']


def test_an_evaluation_says_that_it_replaces_another(without_answers_then_with):
    first, second = without_answers_then_with
    warning = 'which is replaced: give --workdir=DIR'
    assert warning not in first.said
    assert warning in second.said


@dataclasses.dataclass
class FeaturesRun:
    """A feature-based tagger, trained on CoNLL's format with an added token."""

    workdir: Path
    result: dict[str, Any]

    def dev_predictions(self):
        return (self.workdir / 'dev_predictions.txt').read_text()


def conll_sentence(rng):
    lines = []
    for word in sentence(rng).split():
        tag = rng.choice(['O', 'I-PER', 'I-LOC'])
        lines.append(f'{word} NN O {tag}\n')
    return ''.join(lines) + '\n'


class SmallTagger(tokens.BertFeatureTagger):
    """With 16 units a direction instead of 768, which take seconds."""

    units: int = 16


@pytest.fixture(scope='module')
def features_run(pretrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp('conll')
    rng = random.Random(3)
    for name in ('eng.train', 'eng.testa'):
        sentences = [conll_sentence(rng) for _ in range(12)]
        (folder / name).write_text('-DOCSTART- -X- O O\n\n' + ''.join(sentences))
    (folder / 'words.txt').write_text('catbird')
    # Also in the tests that read the run.
    with mock.patch.object(tokens, 'BertFeatureTagger', SmallTagger):
        ended = run(
            'conll.py:features', f'--config.init_checkpoint={pretrained}', *UNPACKED,
            f'--config.data.source={folder}', '--config.train.steps=3',
            f'--config.data.add_tokens={folder}/words.txt', workdir=folder / 'run')
        yield FeaturesRun(folder / 'run', ended.result)


def test_a_tagger_is_scored_over_all_entities_and_by_type(features_run):
    assert {'eval/f1', 'eval/PER/f1'} <= set(features_run.result)


def test_an_added_token_is_in_the_vocabulary_of_the_run(features_run):
    assert 'catbird' in (features_run.workdir / 'vocab.txt').read_text().split()


def test_an_evaluation_of_a_tagger_gives_its_score_and_its_predictions(features_run, tmp_path):
    again = evaluate(features_run.workdir, workdir=tmp_path)
    expected = features_run.result['eval/f1']
    assert again.result['eval/f1'] == pytest.approx(expected, abs=1e-6)
    assert (tmp_path / 'dev_predictions.txt').read_text() == features_run.dev_predictions()


def test_a_loaded_tagger_predicts_what_its_run_wrote(features_run):
    """Of the document as one text, as the run has read it (`conll.document_context`)."""
    columns = [line.split() for line in features_run.dev_predictions().splitlines() if line]
    words = [word for word, *_ in columns]
    with one_device(), shared_steps():
        found = load(features_run.workdir).tag([words])
    assert [tag['label'] for tag in found[0]['tags']] == [tags[1] for _, *tags in columns]


def test_a_feature_based_tagger_is_not_exported(features_run):
    with pytest.raises(InputError, match='stays in its run'):
        load_weights(features_run.workdir)


def classification_row(index, rng):
    label = 'ab'[index % 2]
    return f'{sentence(rng)},{label}'


def tagged_sentence(index, rng):
    tag = ('B-X', 'O')[index % 2]
    lines = [f'{word} {tag}' for word in sentence(rng).split()]
    return '\n'.join(lines) + '\n'


def multiple_choice_row(index, rng):
    cells = [sentence(rng), sentence(rng), sentence(rng), str(index % 2)]
    return ','.join(cells)


@dataclasses.dataclass
class OwnTable:
    """A file of examples as users bring them, and how a run reads it."""

    file: str
    row: Callable[[int, random.Random], str]
    metric: str
    header: str = ''
    flags: tuple[str, ...] = ()


OWN_TABLES = {
    'classification': OwnTable(
        'own.csv', classification_row, 'accuracy', header='text,label\n'),
    'tagging': OwnTable('own.txt', tagged_sentence, 'f1'),
    'multiple_choice': OwnTable(
        'own.csv', multiple_choice_row, 'accuracy', header='text,one,two,y\n',
        flags=('--config.data.choices=one,two', '--config.data.label=y')),
}


@dataclasses.dataclass
class HeldOutRun:
    """A run on an own table of 40 rows, some of them held out, with two evaluations."""

    metric: str
    workdir: Path
    result: dict[str, Any]
    held_out: Ended  # scored on the rows that the training held out, in workdir.parent / 'held_out'
    all: Ended  # scored on the whole table, in workdir.parent / 'all'

    def num_predicted(self, name):
        (file,) = (self.workdir.parent / name).glob('*predictions*')
        return len(file.read_text().splitlines())


@pytest.fixture(scope='module')
def held_out_run(pretrained, tmp_path_factory):
    """A function that makes the `HeldOutRun` of a task, once."""
    @functools.cache
    def run_task(task):
        table = OWN_TABLES[task]
        folder = tmp_path_factory.mktemp(task)
        file = folder / table.file
        rng = random.Random(4)
        rows = [table.row(index, rng) for index in range(40)]
        file.write_text(table.header + '\n'.join(rows) + '\n')
        workdir = folder / 'run'
        ended = run(
            f'{task}.py', f'--config.data.source={file}', '--config.data.held_out=0.3',
            *table.flags, f'--config.init_checkpoint={pretrained}', '--config.train.steps=4',
            *UNPACKED, workdir=workdir)
        held_out = evaluate(workdir, workdir=folder / 'held_out')
        whole_table = evaluate(
            workdir, f'--config.data.eval_source={file}', workdir=folder / 'all')
        return HeldOutRun(table.metric, workdir, ended.result, held_out, whole_table)

    return run_task


every_own_table = pytest.mark.parametrize('task', OWN_TABLES)


@every_own_table
def test_a_run_is_scored_on_the_rows_that_its_training_held_out(held_out_run, task):
    run = held_out_run(task)
    name = f'eval/{run.metric}'
    assert run.held_out.result[name] == pytest.approx(run.result[name], abs=1e-6)
    assert 'held out of training' in run.held_out.said
    assert 'were trained on' not in run.held_out.said


@every_own_table
def test_a_score_on_rows_that_were_trained_on_comes_with_a_warning(held_out_run, task):
    said = held_out_run(task).all.said
    assert 'held out of training' not in said
    (line,) = [line for line in said.splitlines() if 'were trained on' in line]
    found = re.match(r'warning: (\d+) of the (\d+) scored examples', line)
    num_trained_on = int(found[1])
    num_scored = int(found[2])
    assert num_scored == 40
    assert 0 < num_trained_on < num_scored


@every_own_table
def test_predictions_are_written_for_the_rows_that_are_scored(held_out_run, task):
    run = held_out_run(task)
    assert run.num_predicted('held_out') < run.num_predicted('all')


@pytest.mark.parametrize('content, message', [
    pytest.param('B-X the\nO a\n\n', 'write the words first', id='words and tags swapped'),
    pytest.param('the DET\na NOUN\n\n', 'none is the same', id='other tags'),
    pytest.param('the B-X\na NOUN\n\n', 'F1 of entities', id='some other tags'),
])
def test_a_file_with_other_tags_is_not_scored(held_out_run, tmp_path, refusal_of, content, message):
    other = tmp_path / 'other.txt'
    other.write_text(content * 10)
    workdir = held_out_run('tagging').workdir
    assert message in refusal_of(workdir, f'--config.data.eval_source={other}')


ADDED_WORDS = ('catbird', 'thea', 'greenred')


@dataclasses.dataclass
class ContinuedRun:
    """Two steps of pre-training from all parameters of a model, with four words added.

    So small a rate that every parameter stays as it started.
    """

    published: dict[str, np.ndarray]
    workdir: Path
    said: str


@pytest.fixture(scope='module')
def continued(tmp_path_factory):
    folder = tmp_path_factory.mktemp('continued')
    weights = pretraining_weights(folder, num_layers=1)
    write_run(folder / 'published', weights)
    texts = iter(random_texts(300))
    documents = []
    for word in ['cated', *ADDED_WORDS] * 25:
        documents.append(f'{next(texts)} {next(texts)}. {word} {next(texts)}.')
    (folder / 'text.txt').write_text('\n\n'.join(documents))
    (folder / 'words.txt').write_text('\n'.join(['Cated', *ADDED_WORDS]))
    ended = run(
        'continue_pretrain.py', f'--config.init_checkpoint={folder}/published',
        f'--config.data.source={folder}/text.txt', f'--config.data.dir={folder}/cache',
        f'--config.data.add_tokens={folder}/words.txt', *NO_MODEL, '--config.train.steps=2',
        '--config.optimizer.learning_rate=1e-30', workdir=folder / 'run')
    return ContinuedRun(weights.params, folder / 'run', ended.said)


def test_continued_pre_training_says_how_added_words_start(continued):
    assert '4 tokens that the weights do not know start at the mean' in continued.said


def test_the_gate_of_the_first_loss_is_for_fresh_parameters(continued):
    assert 'the loss is' not in continued.said


def test_added_words_come_after_the_published_vocabulary(continued):
    found = load_weights(continued.workdir).vocab_file.read_text().split()
    assert found == [*VOCAB, 'cated', *ADDED_WORDS]


def test_pre_training_continues_from_all_published_parameters(continued):
    """Also from the position table, which is longer than the rows."""
    found = load_weights(continued.workdir).params
    num_old = len(VOCAB)
    for name, x in continued.published.items():
        has_a_row_for_each_word = len(x) == num_old
        kept = found[name][:num_old] if has_a_row_for_each_word else found[name]
        np.testing.assert_array_equal(kept, x, err_msg=name)
    assert len(found['cls/predictions/output_bias']) == num_old + 4
