"""Runs that start from a pre-trained one: pre-training, fine-tuning, evaluation, prediction.

They run in this process, on one of its devices: the command line has its own tests, and short runs
spend most of their time on starting a program, or on compiling for eight devices.
"""

import collections
import contextlib
import io
import json
import random
import re
import shutil
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


def test_conll_features(pretrained, tmp_path):
    rng = random.Random(3)
    for name in ('eng.train', 'eng.testa'):
        text = '-DOCSTART- -X- O O\n\n'
        for _ in range(12):
            text += ''.join(f'{word} NN O {rng.choice(["O", "I-PER", "I-LOC"])}\n'
                            for word in sentence(rng).split()) + '\n'
        (tmp_path / name).write_text(text)
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
    cells = [[line.split() for line in x.splitlines()] for x in written.strip().split('\n\n')]
    sentences, predicted = ([[x[i] for x in of] for of in cells] for i in (0, 2))
    with one_device():
        found = load(folder).tag(sentences)
    assert [[tag['label'] for tag in x['tags']] for x in found] == predicted
    with pytest.raises(InputError, match='stays in its run'):
        load_weights(folder)


OWN = {  # file, its header, its rows, further arguments, the metric
    'classification': (
        'own.csv', 'text,label\n', lambda i, rng: f'{sentence(rng)},{"ab"[i % 2]}', (), 'accuracy'),
    'tagging': ('own.txt', '', lambda i, rng: '\n'.join(
        f'{word} {("B-X", "O")[i % 2]}' for word in sentence(rng).split()) + '\n', (), 'f1'),
    'multiple_choice': (
        'own.csv', 'text,one,two,y\n', lambda i, rng: ','.join(
            [sentence(rng), sentence(rng), sentence(rng), str(i % 2)]),
        ('--config.data.choices=one,two', '--config.data.label=y'), 'accuracy'),
}


@pytest.mark.parametrize('task', OWN)
def test_a_run_is_scored_on_the_rows_that_its_training_held_out(
    task, pretrained, tmp_path, refused
):
    file, header, row, further, metric = OWN[task]
    rng = random.Random(4)
    (tmp_path / file).write_text(header + '\n'.join(row(i, rng) for i in range(40)) + '\n')
    result, _ = run(
        f'{task}.py', f'--config.data.source={tmp_path}/{file}', '--config.data.held_out=0.3',
        *further, f'--config.init_checkpoint={pretrained}', '--config.train.steps=4', *UNPACKED,
        workdir=tmp_path / 'run')
    held_out, said = evaluated(tmp_path / 'run', workdir=tmp_path / 'held_out')
    assert held_out[f'eval/{metric}'] == pytest.approx(result[f'eval/{metric}'], abs=1e-6)
    assert 'held out of training' in said and 'were trained on' not in said
    _, said = evaluated(
        tmp_path / 'run', f'--config.data.eval_source={tmp_path}/{file}', workdir=tmp_path / 'all')
    assert 'held out of training' not in said
    (line,) = (line for line in said.splitlines() if 'were trained on' in line)
    found = re.match(r'warning: (\d+) of the (\d+) scored examples', line)
    number, whole = map(int, found.groups())
    assert 0 < number < whole == 40
    sizes = [len((tmp_path / name / path.name).read_text().splitlines())
             for name in ('held_out', 'all') for path in (tmp_path / name).glob('*predictions*')]
    assert sizes[0] < sizes[1]
    if task == 'tagging':
        for content, message in (
            ('B-X the\nO a\n\n', 'none is the same'),  # words and tags swapped
            ('the DET\na NOUN\n\n', 'none is the same'), ('the B-X\na NOUN\n\n', 'F1 of entities'),
        ):
            (tmp_path / 'other.txt').write_text(content * 10)
            assert message in refused(
                tmp_path / 'run', f'--config.data.eval_source={tmp_path}/other.txt')


@pytest.fixture
def own_tasks():
    """Removes the tasks that config files add, after the test."""
    with mock.patch.dict(OPENERS):
        yield


def test_vectors_of_sentences_by_a_head_of_ones_own(pretrained, tmp_path, own_tasks):
    rng, half, pairs = random.Random(5), len(WORDS) // 2, {}
    for split, count in (('train', 200), ('dev', 60)):
        ids = [rng.choices(range(half), k=4) for _ in range(count)]
        # A pair's second text has a synonym for each word of the first; odd rows are no pairs.
        pairs[split] = [(' '.join(WORDS[i] for i in ids[n]), ' '.join(
            WORDS[half + i] for i in ids[n - n % 2]), 5 * (1 - n % 2)) for n in range(count)]
        write_table(tmp_path / 'STS-B' / f'{split}.tsv', ('sentence1', 'sentence2', 'score'),
                    *pairs[split])
    args = ('../tests/tasks/contrastive.py', f'--config.init_checkpoint={pretrained}',
            f'--config.data.source={tmp_path}', '--config.train.batch_size=32', *UNPACKED[2:],
            '--config.optimizer.learning_rate=3e-3', '--config.train.log_every=1')
    result, _ = run(*args, '--config.train.steps=60', workdir=tmp_path / 'run')
    first, second, truth = zip(*pairs['dev'], strict=True)
    spearman = []
    for model in (pretrained, tmp_path / 'run'):
        with one_device():
            a, b = (load(model).vectors(texts, normalize=True) for texts in (first, second))
        spearman.append(scipy.stats.spearmanr((a * b).sum(axis=1), truth).statistic)
    assert spearman[1] > spearman[0] + 0.3
    assert spearman[1] == pytest.approx(result['eval/spearman'], abs=1e-3)

    losses = []
    for name, devices in (('one', one_device), ('eight', contextlib.nullcontext)):
        run(*args, '--config.train.steps=4', workdir=tmp_path / name, devices=devices)
        records = (tmp_path / name / 'metrics.jsonl').read_text().splitlines()
        losses.append([x['train/loss'] for x in map(json.loads, records) if 'train/loss' in x])
    assert len(losses[0]) == 4
    np.testing.assert_allclose(*losses, rtol=1e-4)


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
        records = map(json.loads, (tmp_path / name[:2] / 'metrics.jsonl').read_text().splitlines())
        norms += [x['train/grad_norm'] for x in records if 'train/grad_norm' in x]
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
