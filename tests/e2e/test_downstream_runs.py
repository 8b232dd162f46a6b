"""Runs that start from a pre-trained one: pre-training, fine-tuning, evaluation, prediction.

They run in this process, on one of its devices: the command line has its own tests, and short runs
spend most of their time on starting a program, or on compiling for eight devices.
"""

import collections
import contextlib
import dataclasses
import io
import json
import random
import re
import shutil
from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest
import scipy.stats

from bert_jax import convert, run_setup
from bert_jax.config.command_line import parse_command
from bert_jax.evaluate import main as evaluate_main
from bert_jax.predict import load
from bert_jax.runtime.checksum import check_digest
from bert_jax.runtime.errors import InputError, Stopped
from bert_jax.runtime.files import as_path
from bert_jax.tasks.opening import OPENERS
from bert_jax.tasks.squad_scores import NEVER_ANSWER
from bert_jax.train import experiment, memory
from bert_jax.validation import validate
from bert_jax.weights import load_weights
from bert_jax.weights.run_directory import write_run
from tests.conftest import ROOT
from tests.predict.tiny import VOCAB, pretraining_weights, random_texts
from tests.tiny_runs import TINY, WORDS, documents, one_device, sentence, write_cola, write_table

pytestmark = pytest.mark.slow

# All batches have one shape, so one program is compiled; the runs of GLUE are packed.
SHORT = ('--config.data.max_seq_length=48', '--config.train.batch_size=8',
         '--config.train.log_every=2', '--config.optimizer.learning_rate=1e-3')
UNPACKED = (*SHORT, '--config.data.packing=False')


def run(config, *args, workdir, stop_at=None, devices=one_device):
    """(result, what it said) of a run; `stop_at` is a step at which it is told to stop."""
    config, _ = parse_command(['run', f'--config={ROOT}/configs/{config}', *args], '')
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), devices():
        validate(config)
        program = run_setup.open_run(config, [as_path(workdir)])
        result = experiment.train_run(program, as_path(workdir), lambda step: step == stop_at)
    return result, said.getvalue()


def evaluated(*args, workdir):
    """(result, what was printed) of bert_jax.evaluate."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), one_device():
        evaluate_main(['evaluate', *map(str, args), f'--workdir={workdir}'])
    return json.loads(said.getvalue().splitlines()[-1].removeprefix('result ')), said.getvalue()


@pytest.fixture
def refused(tmp_path, capsys):
    """A function that runs bert_jax.evaluate, which must fail, and returns its line of error."""
    def line(*args):
        with pytest.raises(SystemExit, match='2'):
            evaluated(*args, workdir=tmp_path / 'refused')
        error = capsys.readouterr().err
        assert error.count('\n') == 1
        return error
    return line


def read_json(path):
    return json.loads(path.read_text())


@pytest.fixture(scope='module')
def pretrained(tmp_path_factory):
    """A tiny model with its vocabulary, pre-trained for two steps."""
    folder = tmp_path_factory.mktemp('pretrained')
    (folder / 'text.txt').write_text(documents(40))
    run('tiny_pretrain.py', *TINY[1:], f'--config.data.source={folder}/text.txt',
        f'--config.data.dir={folder}/cache', '--config.train.steps=2', workdir=folder / 'run')
    return folder / 'run'


@pytest.fixture(scope='module')
def cola(pretrained, tmp_path_factory):
    """(arguments, folder, result, what it said) of a run on CoLA in folder / 'whole'."""
    folder = tmp_path_factory.mktemp('cola')
    write_cola(folder / 'glue')
    shutil.copytree(pretrained, folder / 'start')
    args = ('glue.py:cola', f'--config.init_checkpoint={folder}/start',
            f'--config.data.source={folder}/glue', *SHORT)
    return args, folder, *run(*args, workdir=folder / 'whole')


def test_glue_resumed_equals_uninterrupted_and_its_best_model_is_kept(cola, tmp_path):
    args, folder, whole, said = cola
    assert 'starts fresh: classifier/...' in said and 'left unused: cls/' in said
    assert {'step', 'eval/matthews', 'last/matthews'} <= set(whole)
    again, _ = evaluated(
        folder / 'whole', f'--config.data.eval_source={folder}/glue/CoLA/dev.tsv', workdir=tmp_path)
    assert again['eval/matthews'] == pytest.approx(whole['eval/matthews'], abs=1e-6)
    dev, test = ((folder / 'whole' / f'{split}_predictions.tsv').read_text()
                 for split in ('dev', 'test'))
    assert (tmp_path / 'dev_predictions.tsv').read_text() == dev
    assert (dev.count('\n'), test.count('\n')) == (21, 8)
    with pytest.raises(Stopped):
        run(*args, workdir=folder / 'parts', stop_at=8)  # past the first epoch
    shutil.rmtree(folder / 'start')  # a run has all that it needs to resume
    resumed, said = run(*args, workdir=folder / 'parts')
    assert 'resuming at step' in said and 'note:' not in said
    assert resumed == whole
    assert f"step {whole['step']:,}" in load_weights(folder / 'whole').source


def test_a_run_records_the_step_of_the_parameters_that_it_starts_from(cola, tmp_path):
    args, folder, whole, _ = cola
    newest = max(int(path.name) for path in (folder / 'whole' / 'checkpoints').iterdir())
    for start, step in (('whole', whole['step']), (f'whole/checkpoints/{newest}', newest)):
        run(args[0], f'--config.init_checkpoint={folder}/{start}', *args[2:],
            '--config.train.steps=1', workdir=tmp_path / f'from_{step}')
        assert read_json(tmp_path / f'from_{step}' / 'config.json')['init_step'] == step


def test_a_debug_run_is_three_steps_and_a_part_of_the_evaluation(pretrained, tmp_path):
    write_cola(tmp_path / 'glue', dev=2000)
    shutil.copytree(pretrained, tmp_path / 'start')
    args = ('glue.py:cola', f'--config.init_checkpoint={tmp_path}/start', *SHORT,
            f'--config.data.source={tmp_path}/glue', '--config.debug=True',
            '--config.optimizer.frozen=embeddings|layer_0/')
    with (mock.patch.object(memory, 'device_memory', lambda *_: 10**5),
          pytest.raises(InputError, match=r'batch 8\): train .*accumulation_steps is enough')):
        run(*args, workdir=tmp_path / 'run')
    result, _ = run(*args, workdir=tmp_path / 'run')
    assert result['step'] == 3
    examples = (tmp_path / 'run' / 'dev_examples.csv').read_text().splitlines()[1:]
    assert 100 < sum(not line.endswith(',0.5,0.5') for line in examples) < 1900
    start, end = (load_weights(folder).params for folder in (pretrained, tmp_path / 'run'))
    for name in end.keys() & start.keys():
        stays = 'embeddings' in name or 'layer_0/' in name
        assert (start[name] == end[name]).all() == stays, name
    (tmp_path / 'start' / 'checkpoints' / '2').rename(tmp_path / 'start' / 'checkpoints' / '7')
    _, said = run(*args, workdir=tmp_path / 'run')
    assert 'step 2 of init_checkpoint, which is at 7 now' in said


def test_weights_of_another_program_are_scored_whole_or_not_at_all(
    cola, pretrained, tmp_path, refused
):
    _, folder, result, _ = cola
    config = (f'--config={ROOT}/configs/glue.py:cola', f'--config.data.source={folder}/glue',
              '--config.data.max_seq_length=48')

    def scores(name, *flags):
        again, _ = evaluated(tmp_path / name, *config, *flags, workdir=tmp_path / 'scored')
        assert again['eval/matthews'] == pytest.approx(result['eval/matthews'], abs=1e-6)

    for name in ('huggingface', 'bert_jax'):
        convert.main([str(folder / 'whole'), str(tmp_path / name), '--to', name])
        scores(name)
    unnamed = tmp_path / 'huggingface' / 'config.json'
    unnamed.write_text(json.dumps(read_json(unnamed) | {
        'id2label': {'0': 'LABEL_0', '1': 'LABEL_1'}, 'label2id': {'LABEL_0': 0, 'LABEL_1': 1}}))
    scores('huggingface', '--labels_by_position')

    assert '--labels_by_position' in refused(tmp_path / 'huggingface', *config)
    assert 'LABEL_0 to LABEL_' in refused(folder / 'whole', '--labels_by_position')
    assert 'it was converted' in refused(tmp_path / 'bert_jax')
    assert "has the head 'pretraining'" in refused(pretrained, *config)


@pytest.fixture(scope='module')
def squad(pretrained, tmp_path_factory):
    """(folder of two runs, '0' and '1', that differ in their seed, the result of the second)."""
    folder, rng = tmp_path_factory.mktemp('squad'), random.Random(2)
    paragraphs = []
    for p in range(4):
        context = sentence(rng, 30, 60)
        answers = [rng.choice(context.split()) for _ in range(3)]
        paragraphs.append({'context': context, 'qas': [{
            'id': f'{p}-{q}', 'question': sentence(rng) + '?', 'is_impossible': q == 2,
            'answers': [{'text': answer, 'answer_start': context.index(answer)}] * (q < 2),
        } for q, answer in enumerate(answers)]})
    for part in ('train', 'dev'):
        (folder / f'{part}-v2.0.json').write_text(json.dumps(
            {'version': '2.0', 'data': [{'title': 'x', 'paragraphs': paragraphs}]}))
    for seed in '01':
        result, _ = run(
            'squad.py:v2', f'--config.init_checkpoint={pretrained}', f'--config.seed={seed}',
            f'--config.data.source={folder}', '--config.squad.doc_stride=16', *UNPACKED,
            workdir=folder / seed)
    return folder, result


def edited(run, folder, change):
    """A copy of a run with other fields in its config.json."""
    shutil.copytree(run, folder, dirs_exist_ok=True)
    fields = check_digest(read_json(folder / 'config.json'), folder)
    change(fields)
    (folder / 'config.json').write_text(json.dumps(fields))
    return folder


def test_an_ensemble_scores_and_writes_the_mean_of_the_logits(squad, tmp_path, refused):
    folder, _ = squad

    def scored(*runs):
        """By question and text, the start logits of the candidates."""
        result, _ = evaluated(*(folder / run for run in runs), workdir=tmp_path)
        assert {'eval/exact_match', 'eval/f1'} <= set(result)
        found = collections.defaultdict(list)
        for question, candidates in read_json(tmp_path / 'nbest_predictions.json').items():
            for candidate in candidates:
                found[question, candidate['text']].append(candidate['start_logit'])
        return found

    one, other, both = scored('0'), scored('1'), scored('0', '1')
    alike = [key for key in both
             if key[1] and len(one[key]) == len(other[key]) == len(both[key]) == 1]
    assert len(alike) > 10
    for key in alike:
        np.testing.assert_allclose(both[key], np.mean([one[key], other[key]], 0), atol=1e-4)
    one = edited(folder / '1', tmp_path / '1', lambda fields: fields['squad'].update(doc_stride=64))
    assert 'squad.doc_stride=16' in refused(folder / '0', one)
    cuts_otherwise = shutil.copytree(folder / '1', tmp_path / '2')
    (cuts_otherwise / 'tokenizer_config.json').write_text('{"strip_accents": false}')
    assert 'tokenizer_config.json' in refused(folder / '0', cuts_otherwise)


def test_squad_writes_the_files_of_the_official_script_and_keeps_its_threshold(squad, tmp_path):
    folder, result = squad
    run = folder / '1'
    assert read_json(run / 'config.json')['inference'] == {
        'max_seq_length': 48, 'doc_stride': 16, 'max_query_length': 64,
        'null_threshold': result['eval/null_threshold']}
    predictions = read_json(run / 'predictions.json')
    assert len(predictions) == 12 and all(isinstance(x, str) for x in predictions.values())
    assert set(read_json(run / 'null_odds.json')) == set(predictions)

    # It is scored with the threshold in its config.json.
    scores, said = {}, {}
    for threshold, score in ((NEVER_ANSWER, 100), (1e5, 0)):
        other = edited(run, tmp_path / 'run', lambda fields, new=threshold: fields[
            'inference'].update(null_threshold=new))
        scores[threshold], said[threshold] = evaluated(other, workdir=tmp_path / 'out')
        assert scores[threshold]['eval/null_threshold'] == threshold
        assert any(read_json(tmp_path / 'out' / 'predictions.json').values()) == (threshold > 0)
        assert scores[threshold]['eval/NoAns_f1'] == score
    assert scores[1e5]['eval/best_f1'] == scores[NEVER_ANSWER]['eval/best_f1']
    assert ['which is replaced: give --workdir=DIR' in x for x in said.values()] == [False, True]


def write_conll(path, rng):
    """Writes twelve sentences of one document with random tags."""
    lines = ['-DOCSTART- -X- O O', '']
    for _ in range(12):
        for word in sentence(rng).split():
            tag = rng.choice(['O', 'I-PER', 'I-LOC'])
            lines.append(f'{word} NN O {tag}')
        lines.append('')
    path.write_text('\n'.join(lines) + '\n')


def read_tagged_words(text):
    """(words, predicted tags) of the sentences in a file of predictions."""
    sentences = [[line.split() for line in block.splitlines()]
                 for block in text.strip().split('\n\n')]
    words = [[cells[0] for cells in lines] for lines in sentences]
    tags = [[cells[2] for cells in lines] for lines in sentences]
    return words, tags


def test_conll_features(pretrained, tmp_path):
    rng = random.Random(3)
    write_conll(tmp_path / 'eng.train', rng)
    write_conll(tmp_path / 'eng.testa', rng)
    (tmp_path / 'words.txt').write_text('catbird')
    folder = tmp_path / 'run'
    result, _ = run('conll.py:features', f'--config.init_checkpoint={pretrained}', *UNPACKED,
                    f'--config.data.source={tmp_path}', '--config.train.steps=3',
                    f'--config.data.add_tokens={tmp_path}/words.txt', workdir=folder)
    assert {'eval/f1', 'eval/PER/f1'} <= set(result)
    assert 'catbird' in (folder / 'vocab.txt').read_text().split()
    again, _ = evaluated(folder, workdir=tmp_path / 'again')
    assert again['eval/f1'] == pytest.approx(result['eval/f1'], abs=1e-6)
    written = (folder / 'dev_predictions.txt').read_text()
    assert (tmp_path / 'again' / 'dev_predictions.txt').read_text() == written
    words, predicted = read_tagged_words(written)
    with one_device():
        found = load(folder).tag(words)
    assert [[tag['label'] for tag in result['tags']] for result in found] == predicted
    with pytest.raises(InputError, match='stays in its run'):
        load_weights(folder)


def labelled_row(i, rng):
    return f"{sentence(rng)},{'ab'[i % 2]}"


def tagged_row(i, rng):
    tag = 'O' if i % 2 else 'B-X'
    return ''.join(f'{word} {tag}\n' for word in sentence(rng).split())


def choices_row(i, rng):
    return f'{sentence(rng)},{sentence(rng)},{sentence(rng)},{i % 2}'


@dataclasses.dataclass(frozen=True)
class OwnData:
    """A file of one's own: what a run on it is told, and how it is scored."""

    config: str
    file: str
    header: str
    row: Callable[[int, random.Random], str]
    metric: str
    arguments: tuple[str, ...] = ()


OWN = [
    OwnData('classification.py', 'own.csv', 'text,label\n', labelled_row, 'accuracy'),
    OwnData('tagging.py', 'own.txt', '', tagged_row, 'f1'),
    OwnData('multiple_choice.py', 'own.csv', 'text,one,two,y\n', choices_row, 'accuracy',
            ('--config.data.choices=one,two', '--config.data.label=y')),
]


def run_own(own, pretrained, folder):
    """The result of a run in folder / 'run' on 40 rows, of which it holds some out."""
    rng = random.Random(4)
    rows = [own.row(i, rng) for i in range(40)]
    (folder / own.file).write_text(own.header + '\n'.join(rows) + '\n')
    result, _ = run(
        own.config, f'--config.data.source={folder}/{own.file}', '--config.data.held_out=0.3',
        *own.arguments, f'--config.init_checkpoint={pretrained}', '--config.train.steps=4',
        *UNPACKED, workdir=folder / 'run')
    return result


def num_prediction_lines(folder):
    (path,) = folder.glob('*predictions*')
    return len(path.read_text().splitlines())


@pytest.mark.parametrize('own', OWN, ids=lambda own: own.config)
def test_a_run_is_scored_on_the_rows_that_its_training_held_out(own, pretrained, tmp_path):
    result = run_own(own, pretrained, tmp_path)
    held_out, said = evaluated(tmp_path / 'run', workdir=tmp_path / 'held_out')
    score = f'eval/{own.metric}'
    assert held_out[score] == pytest.approx(result[score], abs=1e-6)
    assert 'held out of training' in said and 'were trained on' not in said
    _, said = evaluated(
        tmp_path / 'run', f'--config.data.eval_source={tmp_path}/{own.file}',
        workdir=tmp_path / 'all')
    assert 'held out of training' not in said
    (line,) = [line for line in said.splitlines() if 'were trained on' in line]
    found = re.match(r'warning: (\d+) of the (\d+) scored examples', line)
    num_trained, num_scored = map(int, found.groups())
    assert 0 < num_trained < num_scored == 40
    assert num_prediction_lines(tmp_path / 'held_out') < num_prediction_lines(tmp_path / 'all')


def test_a_tagger_is_not_scored_on_tags_of_another_kind(pretrained, tmp_path, refused):
    (own,) = [own for own in OWN if own.config == 'tagging.py']
    run_own(own, pretrained, tmp_path)

    def refusal(content):
        (tmp_path / 'other.txt').write_text(content * 10)
        return refused(tmp_path / 'run', f'--config.data.eval_source={tmp_path}/other.txt')

    assert 'none is the same' in refusal('B-X the\nO a\n\n')  # words and tags swapped
    assert 'none is the same' in refusal('the DET\na NOUN\n\n')
    assert 'F1 of entities' in refusal('the B-X\na NOUN\n\n')


@pytest.fixture
def own_tasks():
    """Removes the tasks that config files add, after the test."""
    with mock.patch.dict(OPENERS):
        yield


def pairs_of_synonyms(num, rng):
    """(first, second, score) of pairs; each word of the first has a synonym in the second.

    The second text of an odd row is that of the row before, so that they are no pair.
    """
    half = len(WORDS) // 2
    ids = [rng.choices(range(half), k=4) for _ in range(num)]
    pairs = []
    for row in range(num):
        first = ' '.join(WORDS[i] for i in ids[row])
        second = ' '.join(WORDS[half + i] for i in ids[row - row % 2])
        pairs.append((first, second, 0 if row % 2 else 5))
    return pairs


def logged(workdir, name):
    """A metric in the records of a run that have it."""
    records = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
    return [record[name] for record in records if name in record]


@pytest.fixture
def vectors_args(pretrained, tmp_path):
    """Arguments of a run that learns vectors of sentences, and the pairs that it is scored on."""
    rng = random.Random(5)
    train = pairs_of_synonyms(200, rng)
    dev = pairs_of_synonyms(60, rng)
    for split, pairs in (('train', train), ('dev', dev)):
        write_table(tmp_path / 'STS-B' / f'{split}.tsv', ('sentence1', 'sentence2', 'score'),
                    *pairs)
    args = ('../tests/tasks/contrastive.py', f'--config.init_checkpoint={pretrained}',
            f'--config.data.source={tmp_path}', '--config.train.batch_size=32', *UNPACKED[2:],
            '--config.optimizer.learning_rate=3e-3', '--config.train.log_every=1')
    return args, dev


def test_vectors_of_sentences_by_a_head_of_ones_own(
    pretrained, vectors_args, tmp_path, own_tasks
):
    args, dev = vectors_args
    result, _ = run(*args, '--config.train.steps=60', workdir=tmp_path / 'run')
    first, second, truth = zip(*dev, strict=True)

    def spearman(model):
        with one_device():
            a = load(model).vectors(first, normalize=True)
            b = load(model).vectors(second, normalize=True)
        return scipy.stats.spearmanr((a * b).sum(axis=1), truth).statistic

    learned = spearman(tmp_path / 'run')
    assert learned > spearman(pretrained) + 0.3
    assert learned == pytest.approx(result['eval/spearman'], abs=1e-3)


def test_a_loss_that_compares_examples_is_the_same_on_one_device_and_on_eight(
    vectors_args, tmp_path, own_tasks
):
    args, _ = vectors_args
    run(*args, '--config.train.steps=4', workdir=tmp_path / 'one')
    run(*args, '--config.train.steps=4', workdir=tmp_path / 'eight',
        devices=contextlib.nullcontext)
    losses = logged(tmp_path / 'one', 'train/loss')
    assert len(losses) == 4
    np.testing.assert_allclose(losses, logged(tmp_path / 'eight', 'train/loss'), rtol=1e-4)


def test_a_small_model_learns_from_the_probabilities_of_a_large_one(
    pretrained, tmp_path, own_tasks
):
    rng = random.Random(6)
    for folder, wrong in (('glue', 0), ('wrong', 1)):
        for split, count in (('train', 200), ('dev', 40)):
            write_table(tmp_path / folder / 'SST-2' / f'{split}.tsv', ('sentence', 'label'), *(
                (f'{WORDS[-(i % 2)]} {sentence(rng)}', i % 2 ^ (wrong and split == 'train'))
                for i in range(count)))
    steps = (*UNPACKED, '--config.train.steps=120')
    run('glue.py:sst2', f'--config.init_checkpoint={pretrained}', *steps,
        f'--config.data.source={tmp_path}/glue', workdir=tmp_path / 'large')
    # The student's sentences have wrong labels: only the probabilities can teach it.
    result, _ = run(
        f'../tests/tasks/distillation.py:{tmp_path}/large', '--config.model.name=L-1_H-32_A-2',
        f'--config.data.vocab_file={pretrained}/vocab.txt', *steps,
        f'--config.data.source={tmp_path}/wrong', workdir=tmp_path / 'small')
    assert result['eval/accuracy'] > 0.9
    again, _ = evaluated(tmp_path / 'small', workdir=tmp_path / 'again')
    assert again['eval/accuracy'] == result['eval/accuracy']


def test_masked_words_are_learned_from_the_probabilities_of_a_large_model(tmp_path, own_tasks):
    write_run(tmp_path / 'large', pretraining_weights(tmp_path))
    texts = random_texts(300)
    (tmp_path / 'text.txt').write_text('\n\n'.join(map('{}. {}.'.format, texts[::2], texts[1::2])))
    norms = []
    for name in ('continue_pretrain.py', f'../tests/tasks/distillation.py:mlm:{tmp_path}/large'):
        run(name, f'--config.init_checkpoint={tmp_path}/large', *TINY[4:], '--config.train.steps=1',
            f'--config.data.source={tmp_path}/text.txt', f'--config.data.dir={tmp_path}/cache',
            '--config.model.name=', '--config.model.hidden_dropout=0', '--config.train.log_every=1',
            '--config.model.attention_dropout=0', workdir=tmp_path / name[:2])
        norms += logged(tmp_path / name[:2], 'train/grad_norm')
    alone, taught = norms
    assert taught < 1e-4 < 0.1 < alone, 'a student equal to its teacher has nothing to learn'


ADDED = ('catbird', 'thea', 'greenred')


def test_pre_training_continues_from_all_published_parameters_and_adds_words(tmp_path):
    published, texts = pretraining_weights(tmp_path), random_texts(300)
    write_run(tmp_path / 'published', published)
    (tmp_path / 'text.txt').write_text('\n\n'.join(
        f'{a} {b}. {word} {c}.' for a, b, c, word in zip(
            texts[::3], texts[1::3], texts[2::3], ['cated', *ADDED] * 25)))
    (tmp_path / 'words.txt').write_text('\n'.join(['Cated', *ADDED]))
    _, said = run(
        'continue_pretrain.py', f'--config.init_checkpoint={tmp_path}/published',
        f'--config.data.source={tmp_path}/text.txt', f'--config.data.dir={tmp_path}/cache',
        f'--config.data.add_tokens={tmp_path}/words.txt', *TINY[4:], '--config.train.steps=2',
        # So small a rate that every parameter stays as it started.
        '--config.optimizer.learning_rate=1e-30', workdir=tmp_path / 'run',
    )
    assert '4 tokens that the weights do not know start at the mean' in said
    assert 'the loss is' not in said, 'the gate of the first loss is for fresh parameters'
    found, old = load_weights(tmp_path / 'run'), len(VOCAB)
    assert found.vocab_file.read_text().split() == [*VOCAB, 'cated', *ADDED]
    for name, x in published.params.items():  # also the position table, longer than the rows
        np.testing.assert_array_equal(found.params[name][:old] if len(x) == old else
                                      found.params[name], x, err_msg=name)
    assert len(found.params['cls/predictions/output_bias']) == old + 4
