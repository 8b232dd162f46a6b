"""Runs whose head a config file defines: the recipes of `configs/`, at a tiny size.

Each is trained, resumed, trained on other devices, and read back by the commands without its file.
"""

import dataclasses
import functools
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from flax.traverse_util import flatten_dict

from bert_jax import convert
from bert_jax.config.bert_config import OPTIONS
from bert_jax.foreign import load_weights
from bert_jax.heads.replaced_tokens import ReplacedTokens
from bert_jax.loading import load
from bert_jax.model.flops import muon_flops
from bert_jax.model.layers import ModelConfig
from bert_jax.run.model import write_run
from bert_jax.runtime.checksum import digest
from bert_jax.runtime.errors import Stopped
from bert_jax.runtime.files import as_path
from bert_jax.tools.report.runs import RunRecords
from bert_jax.weights.parameters import to_tree
from tests.conftest import ROOT, xla_flags
from tests.in_process import evaluate, recorded, run, run_first_steps
from tests.predict.tiny import pretraining_weights, random_texts
from tests.programs import run_program
from tests.shared_steps import shared_steps
from tests.tiny_runs import (
    TINY,
    WORDS,
    documents,
    first_devices,
    one_device,
    saved,
    sentence,
    write_cola,
    write_table,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('kernels_of_numpy')]

# Those of TINY that the paper's pre-training and others share.
SMALL = (
    *TINY[1:], '--config.model.initializer_range=0.2',
    '--config.phases=()', '--config.train.steps=6', '--config.train.log_every=1')
ELECTRA = ROOT / 'configs' / 'electra_pretrain.py'
two_devices = functools.partial(first_devices, 2)


@dataclasses.dataclass
class ElectraRun:
    """An ELECTRA run in packed rows that nothing interrupted, and the flags of another like it."""

    workdir: Path
    args: tuple[str, ...]
    result: dict[str, Any]
    said: str


@pytest.fixture(scope='module')
def of_text(tmp_path_factory):
    """The flags of runs on a text, which share its vocabulary and tokens."""
    folder = tmp_path_factory.mktemp('text')
    (folder / 'text.txt').write_text(documents(100, sentences=1))
    return f'--config.data.source={folder}/text.txt', f'--config.data.dir={folder}/cache'


@pytest.fixture(scope='module')
def electra(of_text, tmp_path_factory):
    folder = tmp_path_factory.mktemp('electra')
    args = (
        'electra_pretrain.py:tiny', *SMALL, *of_text, '--config.model.hidden_dropout=0.1',
        '--config.train.packed_rows=8', '--config.data.max_seq_length=64',
        '--config.data.max_predictions_per_seq=10',
        '--config.optimizer.name=bert_adamw')  # compiled sooner than the recipe's Muon
    ended = run(*args, workdir=folder / 'run')
    return ElectraRun(folder / 'run', args, ended.result, ended.said)


def fields_of(workdir):
    return json.loads((workdir / 'config.json').read_text())


def test_a_run_keeps_the_file_that_defines_its_head(electra):
    content = ELECTRA.read_bytes()
    assert (electra.workdir / 'config_file.py').read_bytes() == content
    fields = fields_of(electra.workdir)
    assert fields['config_file'] == {'name': 'electra_pretrain.py', 'digest': digest(content)}
    assert (fields['task'], fields['head']) == ('pretrain_electra', 'replaced_tokens')
    assert fields['metric'] == 'replaced_f1'


def test_metrics_of_both_models_are_reported(electra):
    for name in ('replaced_loss', 'replaced_accuracy', 'replaced_f1', 'mlm_loss', 'mlm_accuracy'):
        assert np.isfinite(electra.result[f'eval/{name}'])
    # 15 % are masked, and a generator that knows nothing seldom draws the right word.
    assert 0.1 < electra.result['eval/replaced_share'] < 0.2
    losses = recorded(electra.workdir, 'train/loss')
    assert losses[0] > losses[-1]
    assert 'warning' not in electra.said.split('phase length')[0]


@pytest.fixture(scope='module')
def on_random_tokens(tmp_path_factory):
    """The directory of a run from the command line, with the recipe's optimizer."""
    folder = tmp_path_factory.mktemp('random')
    flags = [flag for flag in SMALL if '.data.' not in flag]
    ended = run_program(
        '-m', 'bert_jax.main', f'--config={ELECTRA}:tiny', *flags, '--config.train.steps=2',
        '--config.task=synthetic_electra', '--config.data.max_seq_length=16',
        '--config.data.vocab_size=300', f'--config.data.dir={folder}/cache',
        f'--workdir={folder}/run', XLA_FLAGS=xla_flags(1))
    assert ended.returncode == 0, ended.stderr
    assert 'eval/replaced_f1' in ended.stdout.splitlines()[-1]
    return folder / 'run'


def test_it_runs_from_the_command_line_on_random_tokens(on_random_tokens):
    assert (on_random_tokens / 'config_file.py').exists()


@functools.cache
def params_of(workdir):
    step, tree = saved(workdir)
    return step, flatten_dict(tree['params'], sep='/')


def test_a_run_that_was_stopped_ends_as_one_that_was_not(electra, tmp_path):
    with pytest.raises(Stopped):
        run(*electra.args, workdir=tmp_path, stop_at=3)
    ended = run(*electra.args, workdir=tmp_path)
    assert 'resuming at step 3' in ended.said
    assert 'config_file' not in ended.said
    assert ended.result == electra.result
    _, found = params_of(tmp_path)
    for name, array in params_of(electra.workdir)[1].items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_two_devices_and_parts_of_a_batch_train_as_one(electra, tmp_path):
    """The words that are drawn are the same, too: else the losses would differ by far more."""
    ended = run(
        *electra.args, '--config.train.accumulation_steps=2', workdir=tmp_path,
        devices=two_devices)
    losses = [recorded(workdir, 'train/loss') for workdir in (electra.workdir, tmp_path)]
    assert len(losses[0]) == 6
    np.testing.assert_allclose(*losses, rtol=1e-4)
    for name, value in electra.result.items():
        assert ended.result[name] == pytest.approx(value, rel=2e-3), name


def test_the_encoder_is_read_without_the_file(electra, tmp_path):
    """Nothing of the copy is run: it may be anything."""
    workdir = shutil.copytree(electra.workdir, tmp_path / 'run')
    (workdir / 'config_file.py').write_text("raise SystemExit('code of a run directory is run')")
    weights = load_weights(workdir)
    assert weights.head == 'replaced_tokens'
    assert weights.unused == ('generator/...',)
    _, params = params_of(electra.workdir)
    assert weights.params.keys() == {name for name in params if not name.startswith('generator/')}
    with one_device(), shared_steps():
        model = load(workdir)
        vectors = model.vectors(['some words'])
        values = model.features(['some words'])[0]['values'][:, 0]
    np.testing.assert_allclose(vectors[0], values.mean(0), rtol=1e-5, atol=1e-6)


def test_it_is_converted_without_its_generator(electra, tmp_path, capsys):
    convert.main([str(electra.workdir), str(tmp_path / 'converted'), '--to', 'bert_jax'])
    assert 'left out: generator/...' in capsys.readouterr().out
    here, there = (load_weights(path) for path in (electra.workdir, tmp_path / 'converted'))
    assert here.head == there.head
    for name, array in here.params.items():
        np.testing.assert_array_equal(there.params[name], array)


def test_it_is_written_as_transformers_has_it(electra, tmp_path):
    convert.main([str(electra.workdir), str(tmp_path / 'folder'), '--to', 'huggingface'])
    config = json.loads((tmp_path / 'folder' / 'config.json').read_text())
    assert config['architectures'] == ['ElectraForPreTraining']
    here, there = (load_weights(path) for path in (electra.workdir, tmp_path / 'folder'))
    assert there.head == here.head
    for option in OPTIONS:
        if option.effect != 'trains':  # a family has its own rates of dropout
            assert there.model[option.name] == here.model[option.name]
    for name, array in here.params.items():
        np.testing.assert_array_equal(there.params[name], array)


@pytest.mark.extras
def test_transformers_computes_its_logits(electra, tmp_path):
    torch = pytest.importorskip('torch')
    transformers = pytest.importorskip('transformers')
    convert.main([str(electra.workdir), str(tmp_path / 'folder'), '--to', 'huggingface'])
    theirs, loaded = transformers.ElectraForPreTraining.from_pretrained(
        tmp_path / 'folder', output_loading_info=True)
    assert not any(loaded[kind] for kind in ('missing_keys', 'unexpected_keys'))
    weights = load_weights(electra.workdir)
    ids = np.random.default_rng(0).integers(0, weights.model['vocab_size'], (3, 20))
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor(ids)).logits.numpy()
    config = ModelConfig(**weights.model)
    batch = {'input_ids': ids, 'sequence_ids': np.ones_like(ids), 'segment_ids': 0 * ids}
    found = ReplacedTokens(config).outputs(
        to_tree(weights.params, config.padded_vocab_size), batch)
    np.testing.assert_allclose(found['logits'], expected, atol=1e-5)


def test_the_discriminator_is_fine_tuned(electra, tmp_path):
    glue = write_cola(tmp_path / 'glue')
    said = run_first_steps(
        'glue.py:cola', f'--config.init_checkpoint={electra.workdir}',
        f'--config.data.source={glue}', '--config.data.max_seq_length=32',
        workdir=tmp_path / 'run', num_steps=1)
    assert 'starts fresh: bert/pooler/..., classifier/...' in said
    (unused,) = re.findall('left unused: (.*)', said)
    assert 'discriminator_predictions/...' in unused
    assert 'generator' in unused
    fields = fields_of(tmp_path / 'run')
    assert fields['init_step'] == 6  # the step that it starts from
    assert 'config_file' not in fields


def test_another_run_with_the_same_head_starts_from_all_of_it(electra, tmp_path):
    num_params = len(params_of(electra.workdir)[1])
    said = run_first_steps(
        *electra.args, f'--config.init_checkpoint={electra.workdir}', workdir=tmp_path, num_steps=1)
    assert f'{num_params} of {num_params} parameters' in said


def test_a_report_has_the_flops_and_the_size_of_both_models(on_random_tokens):
    fields = fields_of(on_random_tokens)
    records = RunRecords(as_path(on_random_tokens), 'electra')
    (step_flops,) = fields['step_flops']
    model = ModelConfig(**load_weights(on_random_tokens).model)
    of_optimizer = muon_flops(model)
    assert of_optimizer > 0
    assert records.work_at(2)[1] == pytest.approx(2 * (step_flops + of_optimizer))
    _, params = params_of(on_random_tokens)
    num_padding = model.padded_vocab_size - model.vocab_size
    sizes = [array.size for array in params.values()]
    # The rows of the word table, and the generator's bias.
    assert fields['parameters'] == sum(sizes) - num_padding * (32 + 1)


def test_a_resumed_run_says_that_its_file_has_changed(electra, tmp_path):
    changed = tmp_path / 'electra_pretrain.py'
    changed.write_text(ELECTRA.read_text() + '\n# Changed.\n')
    args = (f'{changed}:tiny', *electra.args[1:])
    workdir = shutil.copytree(electra.workdir, tmp_path / 'run')
    ended = run(*args, workdir=workdir)
    assert 'note: config_file.digest was' in ended.said
    assert ended.result == electra.result, 'it had finished'
    assert (workdir / 'config_file.py').read_text().endswith('# Changed.\n')


@pytest.fixture(scope='module')
def pretrained(of_text, tmp_path_factory):
    """The directory of a tiny model with its vocabulary, pre-trained for two steps."""
    workdir = tmp_path_factory.mktemp('pretrained') / 'run'
    run('tiny_pretrain.py', *TINY[1:], *of_text, '--config.train.steps=2', workdir=workdir)
    return workdir


@dataclasses.dataclass
class Pair:
    """Two texts, with a score from 0 to 5 for how much they mean the same."""

    first: str
    second: str
    score: int


def synonymous_pairs(rng, count):
    """Pairs whose second text has a synonym for each word of the first; odd rows are no pairs.

    The synonym of a word of the first half of WORDS is the word in the same place of the other.
    """
    half = len(WORDS) // 2
    words_of_texts = [rng.choices(range(half), k=4) for _ in range(count)]
    pairs = []
    for index, words in enumerate(words_of_texts):
        is_pair = index % 2 == 0
        same_words = words if is_pair else words_of_texts[index - 1]
        first = ' '.join(WORDS[word] for word in words)
        second = ' '.join(WORDS[half + word] for word in same_words)
        pairs.append(Pair(first, second, score=5 if is_pair else 0))
    return pairs


VECTORS = (
    '--config.data.packing=False', '--config.train.batch_size=32', '--config.train.log_every=1',
    '--config.optimizer.learning_rate=3e-3', '--config.data.max_seq_length=32')


@dataclasses.dataclass
class VectorsRun:
    """A run on pairs of synonyms, with the flags of another, and the pairs that are scored."""

    workdir: Path
    args: tuple[str, ...]
    dev: list[Pair]
    result: dict[str, Any]


@pytest.fixture(scope='module')
def stsb(pretrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp('stsb')
    rng = random.Random(5)
    pairs = {'train': synonymous_pairs(rng, 1000), 'dev': synonymous_pairs(rng, 60)}
    for split, pairs_of_split in pairs.items():
        rows = map(dataclasses.astuple, pairs_of_split)
        write_table(
            folder / 'STS-B' / f'{split}.tsv', ('sentence1', 'sentence2', 'score'), *rows)
    args = (
        'sentence_vectors.py:stsb', f'--config.init_checkpoint={pretrained}',
        f'--config.data.source={folder}', *VECTORS, '--config.train.steps=60')
    ended = run(*args, workdir=folder / 'run')
    return VectorsRun(folder / 'run', args, pairs['dev'], ended.result)


def correlation_of_cosines(model, pairs):
    """Spearman's correlation of the scores of pairs with the cosines of a model's vectors."""
    with one_device(), shared_steps():
        loaded = load(model)
        first = loaded.vectors([pair.first for pair in pairs], normalize=True)
        second = loaded.vectors([pair.second for pair in pairs], normalize=True)
    cosines = (first * second).sum(axis=1)
    return scipy.stats.spearmanr(cosines, [pair.score for pair in pairs]).statistic


def test_vectors_of_sentences_are_trained_and_read_back_as_the_run_makes_them(stsb, pretrained):
    before = correlation_of_cosines(pretrained, stsb.dev)
    after = correlation_of_cosines(stsb.workdir, stsb.dev)
    assert after > before + 0.3
    assert after == pytest.approx(stsb.result['eval/spearman'], abs=1e-3)
    with one_device(), shared_steps():
        vectors = load(stsb.workdir).vectors([pair.first for pair in stsb.dev])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)


def test_cut_vectors_are_scored_too(stsb):
    with one_device(), shared_steps():
        model = load(stsb.workdir)
        first, second = (
            model.vectors([getattr(pair, name) for pair in stsb.dev])[:, :8]
            for name in ('first', 'second'))
    cosines = (first * second).sum(1) / (
        np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1))
    expected = scipy.stats.spearmanr(cosines, [pair.score for pair in stsb.dev]).statistic
    assert stsb.result['eval/spearman_8'] == pytest.approx(expected, abs=1e-3)
    assert 'eval/spearman_16' in stsb.result


def test_a_loss_that_compares_all_examples_is_the_same_on_two_devices(stsb, tmp_path):
    with pytest.raises(Stopped):
        run(*stsb.args, workdir=tmp_path, stop_at=4, devices=two_devices)
    two, one = (recorded(workdir, 'train/loss') for workdir in (tmp_path, stsb.workdir))
    assert len(two) == 4
    np.testing.assert_allclose(one[:4], two, rtol=1e-4)


def test_a_run_of_vectors_that_was_stopped_ends_as_one_that_was_not(stsb, tmp_path):
    with pytest.raises(Stopped):
        run(*stsb.args, workdir=tmp_path, stop_at=50)
    ended = run(*stsb.args, workdir=tmp_path)
    assert 'resuming at step 50' in ended.said
    assert ended.result == stsb.result


def test_a_run_of_vectors_is_scored_again(stsb, tmp_path):
    again = evaluate(stsb.workdir, workdir=tmp_path / 'same')
    assert again.result['eval/spearman'] == pytest.approx(stsb.result['eval/spearman'], abs=1e-5)


def test_any_encoder_is_scored_as_it_is(stsb, pretrained, tmp_path):
    config = ROOT / 'configs' / 'sentence_vectors.py'
    ended = evaluate(
        pretrained, f'--config={config}:stsb', stsb.args[2], '--config.data.max_seq_length=32',
        workdir=tmp_path)
    expected = correlation_of_cosines(pretrained, stsb.dev)
    assert ended.result['eval/spearman'] == pytest.approx(expected, abs=1e-3)


def test_vectors_are_converted_to_a_folder_of_sentence_transformers(stsb, tmp_path):
    convert.main([str(stsb.workdir), str(tmp_path / 'folder'), '--to', 'huggingface'])
    modules = json.loads((tmp_path / 'folder' / 'modules.json').read_text())
    assert [module['path'] for module in modules] == ['', '1_Pooling', '2_Normalize']
    texts = [pair.first for pair in stsb.dev]
    with one_device(), shared_steps():
        model = load(tmp_path / 'folder')
        assert model.sentences.pooling() == ('mean', True)
        assert model.max_length == 32
        np.testing.assert_allclose(
            model.vectors(texts), load(stsb.workdir).vectors(texts), atol=1e-6)


@pytest.mark.extras
def test_sentence_transformers_makes_the_same_vectors(stsb, tmp_path):
    transformers = pytest.importorskip('sentence_transformers')
    convert.main([str(stsb.workdir), str(tmp_path / 'folder'), '--to', 'huggingface'])
    theirs = transformers.SentenceTransformer(str(tmp_path / 'folder'), device='cpu')
    texts = [*(pair.first for pair in stsb.dev), ' '.join(WORDS[:60])]
    with one_device(), shared_steps():
        ours = load(stsb.workdir).vectors(texts)
    np.testing.assert_allclose(theirs.encode(texts), ours, atol=1e-5)


def test_hard_negatives_come_from_further_columns(pretrained, tmp_path):
    """Each negative shares three of its four words with the partner."""
    rng = random.Random(7)
    rows = []
    for pair in synonymous_pairs(rng, 1600)[::2]:
        wrong = pair.second.split()
        wrong[rng.randrange(4)] = rng.choice(WORDS)
        rows.append((pair.first, pair.second, ' '.join(wrong)))
    write_table(tmp_path / 'pairs.tsv', ('question', 'answer', 'wrong'), *rows)
    args = (
        'sentence_vectors.py', f'--config.init_checkpoint={pretrained}',
        f'--config.data.source={tmp_path}/pairs.tsv', '--config.data.text=question',
        '--config.data.text_pair=answer', *VECTORS)
    args = (*args, '--config.train.steps=20', '--config.train.eval_every=4')
    run(*args, '--config.data.choices=wrong', workdir=tmp_path / 'trained')
    at_first, *_, at_last = recorded(tmp_path / 'trained', 'eval/accuracy_at_1')
    assert at_last > at_first + 0.2
    run_first_steps(*args, workdir=tmp_path / 'without', num_steps=1)
    losses = [recorded(tmp_path / name, 'train/loss')[0] for name in ('trained', 'without')]
    assert losses[0] > losses[1] + 0.3, 'there are twice as many candidates'


def write_sst2(folder, rng, is_train_wrong):
    """Writes sentences whose first word tells their label, and returns the folder."""
    for split, count in (('train', 1000), ('dev', 40)):
        rows = []
        for index in range(count):
            first_word = index % 2
            is_wrong = is_train_wrong and split == 'train'
            label = 1 - first_word if is_wrong else first_word
            rows.append((f'{WORDS[-first_word]} {sentence(rng)}', label))
        write_table(folder / 'SST-2' / f'{split}.tsv', ('sentence', 'label'), *rows)
    return folder


def test_a_small_model_learns_from_the_probabilities_of_a_large_one(pretrained, tmp_path):
    rng = random.Random(6)
    right = write_sst2(tmp_path / 'right', rng, is_train_wrong=False)
    # The student's sentences have wrong labels: only the probabilities can teach it.
    wrong = write_sst2(tmp_path / 'wrong', rng, is_train_wrong=True)
    steps = (*VECTORS, '--config.train.batch_size=8', '--config.optimizer.learning_rate=1e-3',
             '--config.train.steps=120')
    run('glue.py:sst2', f'--config.init_checkpoint={pretrained}', *steps,
        f'--config.data.source={right}', workdir=tmp_path / 'large')
    student = run(
        f'distillation.py:{tmp_path}/large', '--config.model.name=L-1_H-32_A-2',
        f'--config.data.vocab_file={pretrained}/vocab.txt', *steps,
        f'--config.data.source={wrong}', workdir=tmp_path / 'small')
    assert student.result['eval/accuracy'] > 0.9
    again = evaluate(tmp_path / 'small', workdir=tmp_path / 'again')
    assert again.result['eval/accuracy'] == student.result['eval/accuracy']


def test_masked_words_are_learned_from_the_probabilities_of_a_large_model(tmp_path):
    large = tmp_path / 'large'
    write_run(large, pretraining_weights(tmp_path, num_layers=1))
    texts = random_texts(300)
    pairs = zip(texts[::2], texts[1::2], strict=True)
    text_file = tmp_path / 'text.txt'
    text_file.write_text('\n\n'.join(f'{first}. {second}.' for first, second in pairs))

    run(f'distillation.py:mlm:{large}', f'--config.init_checkpoint={large}', *TINY[5:],
        '--config.train.steps=1', f'--config.data.source={text_file}',
        f'--config.data.dir={tmp_path}/cache', '--config.model.name=',
        '--config.model.hidden_dropout=0', '--config.model.attention_dropout=0',
        '--config.train.log_every=1', workdir=tmp_path / 'taught')
    (loss,), (norm,) = (
        recorded(tmp_path / 'taught', f'train/{name}') for name in ('loss', 'grad_norm'))
    assert loss > 0.1, 'there are words, of which the teacher is not sure'
    assert norm < 1e-4, 'a student equal to its teacher has nothing to learn'
    assert load_weights(tmp_path / 'taught').head == 'pretraining'


@dataclasses.dataclass
class TaughtVectors:
    """A run that learned the vectors of `stsb`'s, with the flags of its evaluation."""

    workdir: Path
    config: str
    flags: tuple[str, ...]
    result: dict[str, Any]
    at_first: float


@pytest.fixture(scope='module')
def taught_vectors(stsb, pretrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp('taught')
    rng = random.Random(8)
    write_table(folder / 'texts.tsv', ('text',), *((sentence(rng),) for _ in range(1500)))
    flags = (f'--config.data.source={folder}/texts.tsv', '--config.data.max_seq_length=32')
    config = f'distillation.py:vectors:{stsb.workdir}'
    args = (
        config, *VECTORS, *flags, f'--config.data.vocab_file={pretrained}/vocab.txt',
        '--config.model.name=L-1_H-64_A-2', '--config.data.packing=True')
    ended = run(
        *args, '--config.train.steps=60', '--config.train.eval_every=20', workdir=folder / 'run')
    at_first, *_ = recorded(folder / 'run', 'eval/cosine')
    return TaughtVectors(folder / 'run', config, flags, ended.result, at_first)


def test_a_model_of_another_size_learns_the_vectors_of_a_large_one(taught_vectors):
    assert taught_vectors.result['eval/cosine'] > max(0.8, taught_vectors.at_first + 0.1)


def test_a_head_with_a_parameter_of_its_own_is_scored_with_it(taught_vectors, tmp_path):
    config = ROOT / 'configs' / taught_vectors.config
    again = evaluate(
        taught_vectors.workdir, f'--config={config}', *taught_vectors.flags,
        workdir=tmp_path / 'same')
    expected = taught_vectors.result['eval/cosine']
    assert again.result['eval/cosine'] == pytest.approx(expected, abs=1e-5)
    assert 'another' not in again.said
    changed = tmp_path / 'distillation.py'
    changed.write_text((ROOT / 'configs' / 'distillation.py').read_text() + '# Changed.\n')
    argument = taught_vectors.config.partition(':')[2]
    noted = evaluate(
        taught_vectors.workdir, f'--config={changed}:{argument}', *taught_vectors.flags,
        workdir=tmp_path / 'changed')
    assert 'was trained with another distillation.py' in noted.said
    assert noted.result == again.result


def test_a_head_that_only_its_file_knows_is_read_as_its_encoder(taught_vectors, tmp_path):
    workdir = taught_vectors.workdir
    assert fields_of(workdir)['head'] == 'distilled_vectors'
    weights = load_weights(workdir)
    assert (weights.head, weights.unused) == ('', ('projection/...',))
    assert load_weights(workdir, own_head=True).params.keys() - weights.params.keys() == {
        'projection/kernel', 'projection/bias'}
    convert.main([str(workdir), str(tmp_path / 'folder'), '--to', 'huggingface'])
    with one_device(), shared_steps():
        vectors = load(tmp_path / 'folder').vectors(['some words'])
        np.testing.assert_allclose(vectors, load(workdir).vectors(['some words']), atol=1e-6)
    records = RunRecords(as_path(workdir), 'taught')
    assert records.work_at(1)[1] > 0


def test_a_head_of_ones_own_is_refused_without_its_file(taught_vectors, tmp_path, capsys):
    with pytest.raises(SystemExit, match='2'):
        evaluate(taught_vectors.workdir, workdir=tmp_path)
    assert 'was trained with distillation.py' in capsys.readouterr().err
