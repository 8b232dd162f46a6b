"""Downstream runs: from a pre-trained run to scores and predictions.

In this process, on one of its devices: the command line has its own tests, and most of a short run
is starting a program, or compiling for eight.
"""

import contextlib
import io
import json
import random
import shutil

import numpy as np
import pytest

from bert_jax import convert
from bert_jax.config import data_config_of
from bert_jax.config.command_line import parse_command
from bert_jax.config.validation import validate
from bert_jax.evaluate import evaluate
from bert_jax.evaluate import main as evaluate_main
from bert_jax.predict import load
from bert_jax.runtime.checksum import check_digest
from bert_jax.runtime.errors import InputError, Stopped
from bert_jax.runtime.files import as_path
from bert_jax.tasks.squad import NEVER_ANSWER
from bert_jax.train import experiment
from bert_jax.train.run_directory import read_run_fields
from bert_jax.weights import load_weights
from bert_jax.weights.formats import from_tree
from tests.conftest import ROOT
from tests.tiny_runs import TINY, documents, one_device, saved, sentence, write_cola

pytestmark = pytest.mark.slow

SHORT = (
    '--config.data.max_seq_length=48', '--config.train.batch_size=8', '--config.train.log_every=2',
    '--config.optimizer.learning_rate=1e-3',
)
# One shape of rows, so one program to compile; packed runs are GLUE's.
UNPACKED = (*SHORT, '--config.data.packing=False')


def run(*args, workdir, stop_at=None):
    """(result, what it said) of a run; `stop_at` is a step at which it is told to stop."""
    argv = ['run', args[0].replace('configs/', f'{ROOT}/configs/'), *args[1:]]
    config, _ = parse_command(argv, '')
    said = io.StringIO()
    with contextlib.redirect_stdout(said), one_device():
        validate(config)
        result = experiment.run(config, as_path(workdir), lambda step: step == stop_at)
    return result, said.getvalue()


@pytest.fixture(scope='module')
def pretrained(tmp_path_factory):
    """A tiny model with its vocabulary, pre-trained for two steps."""
    folder = tmp_path_factory.mktemp('pretrained')
    (folder / 'text.txt').write_text(documents(40))
    run(*TINY, '--config.train.batch_size=8', '--config.train.eval_batch_size=8',
        '--config.train.steps=2', f'--config.data.source={folder}/text.txt',
        f'--config.data.dir={folder}/cache', workdir=folder / 'run')
    return folder / 'run'


def test_glue_resumed_equals_uninterrupted_and_its_best_model_is_kept(
    pretrained, tmp_path
):
    glue = write_cola(tmp_path / 'glue')
    start = tmp_path / 'start'
    shutil.copytree(pretrained, start)
    args = ('--config=configs/glue.py:cola', f'--config.init_checkpoint={start}',
            f'--config.data.source={glue}', *SHORT)
    whole, said = run(*args, workdir=tmp_path / 'whole')
    assert 'starts fresh: classifier/...' in said and 'left unused: cls/' in said
    assert {'step', 'eval/matthews', 'last/matthews'} <= set(whole)
    config = data_config_of(read_run_fields(tmp_path / 'whole'))
    config.data.eval_source = str(glue / 'CoLA' / 'dev.tsv')
    with one_device():
        again = evaluate(config, [str(tmp_path / 'whole')], tmp_path / 'again')
    assert again['eval/matthews'] == pytest.approx(whole['eval/matthews'], abs=1e-6)
    name = 'dev_predictions.tsv'
    assert (tmp_path / 'again' / name).read_text() == (tmp_path / 'whole' / name).read_text()
    with pytest.raises(Stopped):
        run(*args, workdir=tmp_path / 'parts', stop_at=8)  # past the first epoch
    shutil.rmtree(start)  # a run has all that it needs to go on
    resumed, said = run(*args, workdir=tmp_path / 'parts')
    assert 'resuming at step' in said and 'note:' not in said
    assert resumed == whole

    lines = (tmp_path / 'whole' / 'test_predictions.tsv').read_text().splitlines()
    assert lines[0] == 'index\tprediction' and len(lines) == 8
    assert {line.split('\t')[1] for line in lines[1:]} <= {'0', '1'}
    assert len((tmp_path / 'whole' / 'dev_predictions.tsv').read_text().splitlines()) == 21
    weights = load_weights(tmp_path / 'whole')
    assert weights.head == 'classification' and weights.labels == ('0', '1')
    assert f"step {whole['step']:,}" in weights.source


def test_an_ensemble_scores_and_writes_the_mean_of_the_logits(pretrained, tmp_path, capsys):
    squad_file(tmp_path / 'train-v1.1.json', 'v1')
    squad_file(tmp_path / 'dev-v1.1.json', 'v1')
    for seed in (0, 1):
        run(
            '--config=configs/squad.py:v1', f'--config.init_checkpoint={pretrained}',
            f'--config.data.source={tmp_path}', f'--config.seed={seed}', *UNPACKED,
            workdir=tmp_path / str(seed),
        )

    def ensemble(*runs):
        with one_device():
            return evaluate_main(
                ['evaluate', *(str(tmp_path / r) for r in runs), f'--workdir={tmp_path}/out'])

    def n_best(folder):
        return json.loads((tmp_path / folder / 'nbest_predictions.json').read_text())

    def start_logit(folder, question, text):  # of the first with that text
        found = [c['start_logit'] for c in n_best(folder)[question] if c['text'] == text]
        return found[0] if found else None

    ensemble('0', '0')
    for question, candidates in n_best('out').items():
        alone = n_best('0')[question]
        assert [c['text'] for c in candidates] == [c['text'] for c in alone]
    ensemble('0', '1')
    last = capsys.readouterr().out.splitlines()[-1].removeprefix('result ')
    assert {'eval/exact_match', 'eval/f1'} <= set(json.loads(last))
    compared = 0
    for question, candidates in n_best('out').items():
        for text in {c['text'] for c in candidates}:
            apart = [start_logit(run, question, text) for run in ('0', '1')]
            if None not in apart and sum(text == c['text'] for c in candidates) == 1:
                compared += 1
                np.testing.assert_allclose(
                    start_logit('out', question, text), np.mean(apart), atol=1e-4)
    assert compared > 10
    assert json.loads((tmp_path / 'out' / 'result.json').read_text())['task'] == 'squad_v1'

    config = tmp_path / '1' / 'config.json'
    said = check_digest(json.loads(config.read_text()), config)
    said['squad']['doc_stride'] = 64
    config.write_text(json.dumps(said))
    with pytest.raises(SystemExit, match='2'):
        ensemble('0', '1')
    refused = capsys.readouterr().err
    assert refused.count('\n') == 1 and 'squad.doc_stride=128' in refused


def squad_file(path, version):
    rng = random.Random(2)
    paragraphs = []
    for p in range(4):
        context = sentence(rng, 30, 60)
        words = context.split()
        questions = []
        for q in range(3):
            answer = words[rng.randrange(len(words))]
            impossible = version == 'v2' and q == 2
            questions.append({
                'id': f'{p}-{q}', 'question': sentence(rng) + '?', 'is_impossible': impossible,
                'answers': [] if impossible else [
                    {'text': answer, 'answer_start': context.index(answer)}],
            })
        paragraphs.append({'context': context, 'qas': questions})
    path.write_text(json.dumps({'version': '2.0', 'data': [
        {'title': 'x', 'paragraphs': paragraphs}]}))


def test_squad_writes_what_the_official_script_takes_and_brings_its_threshold(pretrained, tmp_path):
    for part in ('train', 'dev'):
        squad_file(tmp_path / f'{part}-v2.0.json', 'v2')
    result, _ = run(
        '--config=configs/squad.py:v2', f'--config.init_checkpoint={pretrained}',
        f'--config.data.source={tmp_path}', '--config.squad.doc_stride=16', *UNPACKED,
        workdir=tmp_path / 'run',
    )
    assert {'eval/exact_match', 'eval/f1', 'eval/null_threshold'} <= set(result)
    kept = json.loads((tmp_path / 'run' / 'config.json').read_text())['inference']
    assert kept == {'max_seq_length': 48, 'doc_stride': 16, 'max_query_length': 64,
                    'null_threshold': result['eval/null_threshold']}
    predictions = json.loads((tmp_path / 'run' / 'predictions.json').read_text())
    assert len(predictions) == 12 and all(isinstance(x, str) for x in predictions.values())
    assert set(json.loads((tmp_path / 'run' / 'null_odds.json').read_text())) == set(predictions)

    # It is scored with the threshold that it brings.
    described = tmp_path / 'run' / 'config.json'
    fields = check_digest(json.loads(described.read_text()), described)
    scores = {}
    for threshold in (NEVER_ANSWER, 1e5):
        fields['inference']['null_threshold'] = threshold
        described.write_text(json.dumps(fields))
        scores[threshold], _ = evaluated(str(tmp_path / 'run'), workdir=tmp_path / 'out')
        assert scores[threshold]['eval/null_threshold'] == threshold
        texts = json.loads((tmp_path / 'out' / 'predictions.json').read_text()).values()
        assert any(texts) == (threshold > 0)
    assert scores[NEVER_ANSWER]['eval/NoAns_f1'] == 100
    assert scores[1e5]['eval/NoAns_f1'] == 0
    assert scores[1e5]['eval/best_f1'] == scores[NEVER_ANSWER]['eval/best_f1']


def test_swag_and_conll_features(pretrained, tmp_path):
    rng = random.Random(3)
    swag = tmp_path / 'swag'
    swag.mkdir()
    rows = [{'startphrase': sentence(rng), 'choices': [sentence(rng) for _ in range(4)],
             'answer': i % 4} for i in range(40)]
    (swag / 'all.jsonl').write_text('\n'.join(map(json.dumps, rows)) + '\n')
    result, _ = run(
        '--config=configs/swag.py', f'--config.init_checkpoint={pretrained}',
        f'--config.data.source={swag}', '--config.train.steps=2', *UNPACKED,
        workdir=tmp_path / 'swag_run',
    )
    assert 0 <= result['eval/accuracy'] <= 1

    conll = tmp_path / 'conll'
    conll.mkdir()
    for name in ('eng.train', 'eng.testa'):
        text = '-DOCSTART- -X- O O\n\n'
        for _ in range(12):
            text += ''.join(f'{word} NN O {rng.choice(["O", "I-PER", "I-LOC"])}\n'
                            for word in sentence(rng).split()) + '\n'
        (conll / name).write_text(text)
    result, _ = run(
        '--config=configs/conll.py:features', f'--config.init_checkpoint={pretrained}',
        f'--config.data.source={conll}', '--config.train.steps=3', *UNPACKED,
        workdir=tmp_path / 'conll_run',
    )
    assert {'eval/f1', 'eval/PER/f1'} <= set(result)
    written = (tmp_path / 'conll_run' / 'dev_predictions.txt').read_text().strip()
    cells = [[line.split() for line in x.splitlines()] for x in written.split('\n\n')]
    sentences, predicted = ([[x[i] for x in of] for of in cells] for i in (0, 2))
    evaluated = data_config_of(read_run_fields(tmp_path / 'conll_run'))
    with one_device():
        again = evaluate(evaluated, [str(tmp_path / 'conll_run')], tmp_path / 'again')
        found = load(tmp_path / 'conll_run').tag(sentences)
    assert again['eval/f1'] == pytest.approx(result['eval/f1'], abs=1e-6)
    name = 'dev_predictions.txt'
    assert (tmp_path / 'again' / name).read_text() == (tmp_path / 'conll_run' / name).read_text()
    assert [[tag['label'] for tag in x['tags']] for x in found] == predicted
    with pytest.raises(InputError, match='stays in its run'):
        load_weights(tmp_path / 'conll_run')
    before = load_weights(pretrained)
    _, tree = saved(tmp_path / 'conll_run', 'best')
    after = from_tree(tree['params'], before.model['vocab_size'])
    for name, x in before.params.items():
        if name.startswith('bert/e'):  # frozen
            np.testing.assert_array_equal(after[name], x, err_msg=name)


def evaluated(*args, workdir):
    """(result, what was printed) of the command."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), one_device():
        evaluate_main(['evaluate', *(a.replace('configs/', f'{ROOT}/configs/') for a in args),
                       f'--workdir={workdir}'])
    return json.loads(said.getvalue().splitlines()[-1].removeprefix('result ')), said.getvalue()


OWN = {  # config, file, its rows, further arguments, the metric
    'classification': ('own.csv', lambda i, rng: f'{sentence(rng)},{"ab"[i % 2]}', (), 'accuracy'),
    'tagging': ('own.txt', lambda i, rng: '\n'.join(
        f'{word} {"BO"[i % 2] + "-X" * (i % 2 == 0)}' for word in sentence(rng).split()) + '\n',
        (), 'f1'),
    'multiple_choice': (
        'own.csv', lambda i, rng: f'{sentence(rng)},{sentence(rng)},{sentence(rng)},{i % 2}',
        ('--config.data.choices=one,two', '--config.data.label=y'), 'accuracy'),
}
HEADERS = {'classification': 'text,label', 'multiple_choice': 'text,one,two,y', 'tagging': ''}


@pytest.mark.parametrize('task', OWN)
def test_a_run_is_scored_on_the_rows_that_its_training_held_out(task, pretrained, tmp_path):
    file, row, further, metric = OWN[task]
    rng = random.Random(4)
    lines = [HEADERS[task], *(row(i, rng) for i in range(40))]
    (tmp_path / file).write_text('\n'.join(line for line in lines if line) + '\n')
    args = (f'--config=configs/{task}.py', f'--config.data.source={tmp_path}/{file}',
            '--config.data.held_out=0.3', *further)
    result, _ = run(
        *args, f'--config.init_checkpoint={pretrained}', '--config.train.steps=4', *UNPACKED,
        workdir=tmp_path / 'run')
    held_out, said = evaluated(str(tmp_path / 'run'), workdir=tmp_path / 'held_out')
    assert held_out[f'eval/{metric}'] == pytest.approx(result[f'eval/{metric}'], abs=1e-6)
    assert 'held out of training' in said
    _, said = evaluated(
        str(tmp_path / 'run'), f'--config.data.eval_source={tmp_path}/{file}',
        workdir=tmp_path / 'all')
    assert 'held out of training' not in said
    sizes = [len((tmp_path / name / path.name).read_text().splitlines())
             for name in ('held_out', 'all') for path in (tmp_path / name).glob('*predictions*')]
    assert sizes[0] < sizes[1]


def test_weights_of_another_program_are_scored_whole_or_not_at_all(pretrained, tmp_path, capsys):
    glue = write_cola(tmp_path / 'glue')
    config = ('--config=configs/glue.py:cola', f'--config.data.source={glue}')
    result, _ = run(
        *config, f'--config.init_checkpoint={pretrained}', *SHORT, workdir=tmp_path / 'run')
    folders = {name: tmp_path / name for name in ('huggingface', 'bert_jax')}
    for name, folder in folders.items():
        convert.main([str(tmp_path / 'run'), str(folder), '--to', name])
    length = '--config.data.max_seq_length=48'
    for name, folder in folders.items():
        again, _ = evaluated(str(folder), *config, length, workdir=tmp_path / f'of_{name}')
        assert again['eval/matthews'] == pytest.approx(result['eval/matthews'], abs=1e-6)

    unnamed = json.loads((folders['huggingface'] / 'config.json').read_text())
    unnamed |= {'id2label': {'0': 'LABEL_0', '1': 'LABEL_1'},
                'label2id': {'LABEL_0': 0, 'LABEL_1': 1}}
    (folders['huggingface'] / 'config.json').write_text(json.dumps(unnamed))
    args = (str(folders['huggingface']), *config, length)
    again, _ = evaluated(*args, '--labels_by_position', workdir=tmp_path / 'by_position')
    assert again['eval/matthews'] == pytest.approx(result['eval/matthews'], abs=1e-6)

    def refused(*args):
        with pytest.raises(SystemExit, match='2'):
            evaluated(*args, workdir=tmp_path / 'refused')
        return capsys.readouterr().err

    assert '--labels_by_position' in refused(*args)
    assert 'LABEL_0 to LABEL_' in refused(str(tmp_path / 'run'), '--labels_by_position')
    assert 'it was converted' in refused(str(folders['bert_jax']))
    convert.main([str(pretrained), str(tmp_path / 'headless'), '--to', 'huggingface'])
    assert "has the head 'pretraining'" in refused(str(tmp_path / 'headless'), *config)


SCHEMES = {
    'words and tags swapped': ('B-X the\nO a\n\n', 'none is the same'),
    'another set of tags': ('the DET\na NOUN\n\n', 'none is the same'),
    'one odd tag': ('the B-X\na NOUN\n\n', 'F1 of entities'),
}


@pytest.mark.parametrize('name', SCHEMES)
def test_entities_are_not_scored_on_other_tags(name, pretrained, tmp_path, capsys):
    content, message = SCHEMES[name]
    (tmp_path / 'own.txt').write_text('the O\nman B-X\nsat O\n\n' * 3 + 'a O\ndog B-X\nran O\n\n')
    (tmp_path / 'new.txt').write_text(content * 10)
    args = ('--config=configs/tagging.py', f'--config.init_checkpoint={pretrained}',
            f'--config.data.source={tmp_path}/own.txt', f'--config.data.eval_source={tmp_path}/')
    if not (tmp_path / 'run').exists():
        run(*args[:-1], args[-1] + 'own.txt', '--config.train.steps=1', *UNPACKED,
            workdir=tmp_path / 'run')
    with pytest.raises(SystemExit, match='2'):
        evaluated(str(tmp_path / 'run'), f'--config.data.eval_source={tmp_path}/new.txt',
                  workdir=tmp_path / 'out')
    assert message in capsys.readouterr().err
