"""Fine-tunings that train an adapter: their folders are read, resumed and scored as others are."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bert_jax import convert
from bert_jax.config.adapters import AdapterOptions
from bert_jax.foreign import load_weights
from bert_jax.foreign.peft import base_of, write_peft
from bert_jax.loading import load
from bert_jax.predict.__main__ import main as predict
from bert_jax.run.model import write_run
from bert_jax.runtime.errors import Stopped
from bert_jax.text.vocab import SPECIAL_TOKENS
from bert_jax.weights.adapters import AdapterWeights
from tests.in_process import evaluate, run, run_first_steps
from tests.predict.tiny import pretraining_weights
from tests.refusals import refused
from tests.shared_steps import shared_steps
from tests.tiny_runs import WORDS, one_device, saved, write_cola

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('kernels_of_numpy')]

DORA = ('--config.adapter.kind=dora', '--config.adapter.rank=2', '--config.adapter.dropout=0.1',
        '--config.adapter.targets=attention')


def flags_of(glue, start):
    return (
        'glue.py:cola', f'--config.init_checkpoint={start}', f'--config.data.source={glue}',
        '--config.data.max_seq_length=32', '--config.train.batch_size=8',
        '--config.train.log_every=4', '--config.optimizer.learning_rate=1e-2',
        '--config.data.packing=False')  # batches of one shape, so one program


def fine_tune(glue, start, *flags, workdir, stop_at=None):
    return run(*flags_of(glue, start), *flags, workdir=workdir, stop_at=stop_at)


@dataclasses.dataclass
class Tuned:
    """A fine-tuning with an adapter that nothing interrupted."""

    glue: Path
    start: Path
    workdir: Path
    result: dict[str, Any]
    said: str


@pytest.fixture(scope='module')
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tuned')
    weights = pretraining_weights(folder, (*SPECIAL_TOKENS, *WORDS), num_layers=1)
    write_run(folder / 'start', weights)
    glue = write_cola(folder / 'glue', train=30, dev=10, test=2)
    ended = fine_tune(glue, folder / 'start', *DORA, workdir=folder / 'run')
    return Tuned(glue, folder / 'start', folder / 'run', ended.result, ended.said)


def test_a_run_says_that_the_adapter_starts_fresh(tuned):
    assert 'starts fresh: the adapter, classifier/...' in tuned.said


def test_a_run_says_how_many_parameters_are_trained(tuned):
    weights = load_weights(tuned.workdir, keep_adapter=True)
    head = [x for name, x in weights.params.items() if not name.startswith('bert/e')]
    trained = sum(x.size for x in (*head, *weights.adapter.params.values()))
    assert f'parameters, of which {trained:,} are trained; ' in tuned.said


def test_a_checkpoint_holds_the_encoder_as_it_was_and_the_adapter_beside_it(tuned):
    before = load_weights(tuned.start).params
    after = load_weights(tuned.workdir, keep_adapter=True)
    for name, x in before.items():
        if name.startswith('bert/e'):
            assert (after.params[name] == x).all(), name
    assert after.adapter.options.kind == 'dora' and after.adapter.base == str(tuned.start)
    assert len(after.adapter.params) == 1 * 2 * 3  # layers, kernels, and a, b and magnitude
    merged = load_weights(tuned.workdir)
    changed = {name for name, x in before.items()
               if name.startswith('bert/e') and (merged.params[name] != x).any()}
    assert changed == {name for name in before if '/attention/' in name and 'kernel' in name}


def test_an_evaluation_gives_the_score_of_the_run(tuned, tmp_path):
    again = evaluate(tuned.workdir, f'--config.data.eval_source={tuned.glue}/CoLA/dev.tsv',
                     workdir=tmp_path)
    assert again.result['eval/matthews'] == pytest.approx(tuned.result['eval/matthews'], abs=1e-6)


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tuned, tmp_path):
    with pytest.raises(Stopped):
        fine_tune(tuned.glue, tuned.start, *DORA, workdir=tmp_path, stop_at=8)
    resumed = fine_tune(tuned.glue, tuned.start, *DORA, workdir=tmp_path)
    assert 'resuming at step' in resumed.said
    assert resumed.result == tuned.result
    (_, found), (_, expected) = saved(tmp_path), saved(tuned.workdir)
    assert str(found) == str(expected)


def test_a_run_does_not_go_on_with_another_adapter(tuned, tmp_path):
    workdir = shutil.copytree(tuned.workdir, tmp_path / 'run')
    with refused('adapter.rank'):
        fine_tune(tuned.glue, tuned.start, *DORA, '--config.adapter.rank=3', workdir=workdir)


@pytest.mark.parametrize(('flags', 'said'), [
    (DORA, 'parameters from'), ((), 'is in the weights now')],
    ids=['the same', 'none'])
def test_a_run_that_starts_from_one_with_an_adapter(tuned, tmp_path, flags, said):
    found = run_first_steps(
        *flags_of(tuned.glue, tuned.workdir), *flags, workdir=tmp_path, num_steps=1)
    assert said in found and 'starts fresh' not in found


def test_an_adapter_without_a_model_is_refused(tmp_path):
    with refused('name it with config.init_checkpoint'):
        run('glue.py:cola', '--config.init_checkpoint=', '--config.model.name=tiny',
            '--config.adapter.kind=bitfit', workdir=tmp_path)


def converted(tuned, target, *flags):
    convert.main([str(tuned.workdir), str(target), *flags])
    return target


def test_a_folder_for_peft_comes_with_the_command_for_its_base(tuned, tmp_path, capsys):
    converted(tuned, tmp_path / 'adapter', '--to', 'peft')
    said = capsys.readouterr().out
    assert f'python -m bert_jax.convert {tuned.start} DIR --to huggingface' in said


def test_its_predictions_are_those_of_its_adapter_and_of_its_merged_kernels(tuned, tmp_path):
    texts = [' '.join(WORDS[i : i + 5]) for i in range(0, 100, 9)]
    adapter = converted(tuned, tmp_path / 'adapter', '--to', 'peft')
    huggingface = converted(tuned, tmp_path / 'hf', '--to', 'huggingface', '--merge')
    ours = converted(tuned, tmp_path / 'again', '--to', 'bert_jax')
    with one_device(), shared_steps():
        expected = load(tuned.workdir).classify(texts)
        models = {'beside': load(tuned.start, adapter=adapter), 'huggingface': load(huggingface),
                  'bert_jax': load(ours)}
        for name, model in models.items():
            for result, wanted in zip(model.classify(texts), expected, strict=True):
                assert result['label'] == wanted['label'], name
                assert result['probability'] == pytest.approx(wanted['probability'], abs=1e-5), name


def test_several_adapters_answer_a_text_each(tuned, tmp_path, monkeypatch, capsys):
    one = converted(tuned, tmp_path / 'one', '--to', 'peft')
    other = shutil.copytree(one, tmp_path / 'other')
    content = json.loads((other / 'bert_jax.json').read_text())
    (other / 'bert_jax.json').write_text(json.dumps(content | {'labels': ['no', 'yes']}))
    text = ' '.join(WORDS[:5])
    monkeypatch.setattr('sys.argv', [
        'predict', 'classify', '--model', str(tuned.start), '--adapter', str(one), '--adapter',
        str(other), text, 'bad'])
    capsys.readouterr()  # what the conversion said
    with one_device(), shared_steps():
        predict()
    first, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert first['text'] == text and first.keys() == {'text', 'adapters'}
    answers = first['adapters']
    assert answers['one']['probability'] == answers['other']['probability']
    assert (answers['one']['label'], answers['other']['label']) in {('0', 'no'), ('1', 'yes')}


@pytest.mark.parametrize(('source', 'flags', 'message'), [
    ('workdir', ('--to', 'huggingface'), 'add --merge to bring it into the kernels'),
    ('workdir', ('--to', 'peft', '--merge'), 'leave --merge out'),
    ('start', ('--to', 'peft'), 'has no adapter beside its kernels: --to huggingface'),
    ('start', ('--to', 'bert_jax', '--merge'), 'beside its kernels: leave --merge out'),
])
def test_conversions_without_meaning_are_refused(tuned, tmp_path, capsys, source, flags, message):
    with pytest.raises(SystemExit, match='2'):
        convert.main([str(getattr(tuned, source)), str(tmp_path / 'new'), *flags])
    assert message in capsys.readouterr().err
    assert not (tmp_path / 'new').exists()


def test_peft_has_no_bitfit(tuned, tmp_path):
    weights = load_weights(tuned.workdir, keep_adapter=True)
    biases = dataclasses.replace(
        weights, adapter=AdapterWeights(AdapterOptions('bitfit'), {}, 'x'))
    with refused('which peft does not have'):
        write_peft(tmp_path / 'new', biases)


def test_bitfit_changes_biases_alone_and_needs_no_merging(tuned, tmp_path):
    workdir = tmp_path / 'run'
    run_first_steps(*flags_of(tuned.glue, tuned.start), '--config.adapter.kind=bitfit',
                    workdir=workdir, num_steps=2)
    convert.main([str(workdir), str(tmp_path / 'hf'), '--to', 'huggingface'])
    before, after = load_weights(tuned.start).params, load_weights(tmp_path / 'hf').params
    changed = {name for name, x in before.items()
               if name.startswith('bert/e') and (after[name] != x).any()}
    assert changed and all(name.endswith('/bias') for name in changed)


def test_an_adapter_of_an_adapter_s_run_stands_beside_the_first_model(tuned, tmp_path):
    run_first_steps(*flags_of(tuned.glue, tuned.workdir), *DORA, workdir=tmp_path, num_steps=1)
    assert load_weights(tmp_path, keep_adapter=True).adapter.base == str(tuned.start)
    adapter = converted(tuned, tmp_path / 'adapter', '--to', 'peft')
    going_on = tmp_path / 'going on'
    with pytest.raises(Stopped):
        fine_tune(tuned.glue, adapter, *DORA, workdir=going_on, stop_at=2)
    run_first_steps(*flags_of(tuned.glue, adapter), *DORA, workdir=going_on, num_steps=3)  # resumes
    shutil.rmtree(adapter)  # as on another machine
    assert load_weights(going_on, keep_adapter=True).adapter.base == str(tuned.start)
    with refused('whose embeddings'):
        fine_tune(tuned.glue, tuned.start, *DORA, '--config.data.add_tokens=words.txt',
                  workdir=tmp_path / 'other')


@pytest.mark.parametrize('flags', [
    ('--config.adapter.kind=bitfit',), ('--config.optimizer.frozen=bert/',), DORA],
    ids=['biases', 'the head', 'an adapter'])
def test_what_a_run_trained_is_read_beside_the_model_it_started_from(tuned, tmp_path, flags):
    run_first_steps(
        *flags_of(tuned.glue, tuned.start), *flags, workdir=tmp_path / 'run', num_steps=2)
    texts = [' '.join(WORDS[i : i + 5]) for i in range(0, 100, 9)]
    with one_device(), shared_steps():
        beside = load(tuned.start, adapter=tmp_path / 'run')
        assert beside.classify(texts) == load(tmp_path / 'run').classify(texts)


def test_a_base_of_the_hub_is_named_as_peft_does(tuned, tmp_path):
    weights = load_weights(tuned.workdir, keep_adapter=True)
    of_hub = dataclasses.replace(weights.adapter, base='hf:org/name@v1')
    write_peft(tmp_path / 'new', dataclasses.replace(weights, adapter=of_hub))
    config = json.loads((tmp_path / 'new' / 'adapter_config.json').read_text())
    assert (config['base_model_name_or_path'], config['revision']) == ('org/name', 'v1')
    assert base_of(tmp_path / 'new') == 'hf:org/name@v1'
