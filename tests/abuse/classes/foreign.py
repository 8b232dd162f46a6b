"""Foreign values in the JSON files that are read here: each is read, or refused in one line.

The files are those of other programs (published models and their tokenizers), those of this one
without their digest, and records of work. A value in one of them is replaced by another of any
kind, left out, or gets a neighbour that nobody knows.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from safetensors.numpy import load_file, save_file

from bert_jax.config import default_config
from bert_jax.foreign import load_weights
from bert_jax.foreign.huggingface import write_huggingface
from bert_jax.loading import read_model
from bert_jax.run.description import describe_run
from bert_jax.run.model import write_run
from bert_jax.run.result_folder import free_folder, open_result_folder, write_result
from bert_jax.run.resume_checks import check_resumable
from bert_jax.runtime import folder_lock
from bert_jax.runtime.files import as_path
from bert_jax.tools.report.board import board
from bert_jax.tools.report.examples import Examples
from bert_jax.tools.report.groups import grouped
from bert_jax.tools.report.page import page
from bert_jax.tools.report.runs import RunRecords
from bert_jax.tools.sweep.folder import Sweep
from bert_jax.tools.sweep.members import Member
from bert_jax.watch.goodput import Goodput
from bert_jax.watch.metrics_log import MetricsLog
from tests.abuse.classes.case import Case
from tests.conftest import ROOT

_FIXTURES = ROOT / 'tests' / 'fixtures' / 'huggingface'


class Reader(NamedTuple):
    """A file of JSON (a value a line, if its name ends so), and what reads it.

    Attributes:
      file: below the folder of the things.
      read: is called with that folder.
    """

    file: str
    read: Callable[[Path], object]


def _loads(name: str) -> Callable[[Path], object]:
    return lambda folder: load_weights(as_path(folder / name), any_head=True)


def _make_vectors(folder: Path) -> None:
    _, sentences = read_model(folder / 'vectors')
    sentences.pooling()
    sentences.pools_prompt()
    sentences.activation()
    sentences.prepared(['a b'])


def _resume(folder: Path) -> None:
    """What a run does with the files in its folder before it goes on."""
    workdir = as_path(folder / 'run')
    check_resumable(workdir, _run_fields(), None, comparable=False)
    report = MetricsLog(workdir, True, 4)
    report.write(5, {'train/loss': 1.0})
    with mock.patch('bert_jax.watch.metrics_log.curves', return_value=None):
        report.draw()
    report.close()
    Goodput(workdir, True, 4, 10.0).line()


def _report(folder: Path) -> None:
    runs = [RunRecords(as_path(folder / 'run'), 'run')]
    page(grouped(runs), [Examples()], '')
    board(runs)


def _sweep(folder: Path) -> None:
    members = [Member((('seed', '1'),)), Member((('seed', '2'),))]
    sweep = Sweep(as_path(folder / 'sweep'), 'a.py', [], members)
    sweep.open('a.py', [])
    for member in members:
        sweep.failed(member)
        sweep.seconds(member)
    sweep.unfinished()
    sweep.results()


def _evaluate(folder: Path) -> None:
    result = {'task': 'cola', 'models': ['run'], 'source': 'glue'}
    evaluation = as_path(folder / 'evaluation')
    free_folder(str(evaluation), result)
    open_result_folder(evaluation)
    write_result(evaluation, result, {'dev_predictions.tsv': 'x'})


def _claim(folder: Path) -> None:
    content = folder_lock.read_claim(as_path(folder / 'run' / '.claim-7'))
    folder_lock.is_at_work(content)
    folder_lock.holder(folder / 'run')


READERS = (
    Reader('classifier/config.json', _loads('classifier')),
    Reader('answers/config.json', _loads('answers')),
    Reader('words/config.json', _loads('words')),
    Reader('words/tokenizer_config.json', _loads('words')),
    Reader('words/tokenizer.json', _loads('words')),
    Reader('words/special_tokens_map.json', _loads('words')),
    Reader('words/added_tokens.json', _loads('words')),
    Reader('shards/model.safetensors.index.json', _loads('shards')),
    Reader('adapter/adapter_config.json', _loads('adapter')),
    Reader('vectors/modules.json', _make_vectors),
    Reader('vectors/sentence_bert_config.json', _make_vectors),
    Reader('vectors/config_sentence_transformers.json', _make_vectors),
    Reader('vectors/1_Pooling/config.json', _make_vectors),
    Reader('run/config.json', _loads('run')),
    Reader('run/config.json', _resume),
    Reader('run/config.json', _report),
    Reader('run/metrics.jsonl', _resume),
    Reader('run/metrics.jsonl', _report),
    Reader('run/goodput.json', _resume),
    Reader('run/preflight.json', _report),
    Reader('run/.claim-7', _claim),
    Reader('evaluation/result.json', _evaluate),
    Reader('sweep/sweep.json', _sweep),
    Reader('sweep/runs/seed=1/sweep_result.json', _sweep),
    Reader('sweep/runs/seed=2/sweep_failed.json', _sweep),
    Reader('sweep/runs/seed=1/goodput.json', _sweep),
)
_GOODPUT = {'seconds': {'step': 3.0, 'start': 1.0}, 'away': 0.0, 'at': 5.0, 'marks': {'0': 0.0}}


def _run_fields() -> dict[str, Any]:
    """The fields of config.json of a run with the model of `words`."""
    phase = {'steps': 4, 'batch_size': 8, 'max_seq_length': 8, 'max_predictions_per_seq': 2}
    config = json.loads(default_config().to_json_best_effort())
    config['train']['steps'] = 4  # all are done
    return {
        **config,
        'model': load_weights(_FIXTURES / 'pretraining').model,
        'phases': [phase],
        'head': 'pretraining',
        'metric': 'mlm_accuracy',
        'labels': [],
        'inference': {'max_seq_length': 8},
        'guessing': {'mlm_accuracy': 0.1},
        'step_flops': [1e6],
        'parameters': 1714,
    }


def _write(file: Path, *values: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('\n'.join(json.dumps(value) for value in values) + '\n')


def make(folder: Path) -> None:
    """Makes the files that are spoiled."""
    folder.mkdir()
    shutil.copytree(_FIXTURES / 'classification', folder / 'classifier')
    shutil.copytree(_FIXTURES / 'question_answering', folder / 'answers')
    weights = load_weights(_FIXTURES / 'pretraining')
    write_huggingface(folder / 'words', weights)
    _write(folder / 'words' / 'added_tokens.json', {',': 39})
    _write(folder / 'words' / 'special_tokens_map.json', {
        'pad_token': '[PAD]', 'additional_special_tokens': [',']})
    shutil.copytree(_FIXTURES / 'pretraining', folder / 'shards')
    tensors = load_file(folder / 'shards' / 'model.safetensors')
    (folder / 'shards' / 'model.safetensors').unlink()
    save_file(tensors, folder / 'shards' / 'a.safetensors')
    _write(folder / 'shards' / 'model.safetensors.index.json', {
        'metadata': {'total_size': 1}, 'weight_map': dict.fromkeys(tensors, 'a.safetensors')})
    _write(folder / 'adapter' / 'adapter_config.json', {
        'base_model_name_or_path': str(folder / 'classifier'), 'peft_type': 'LORA', 'r': 2,
        'lora_alpha': 4, 'rank_pattern': {'x': 1}})
    (folder / 'adapter' / 'adapter_model.safetensors').write_bytes(b'')
    _make_sentences(folder / 'vectors')
    _make_run(folder / 'run', weights)
    _write(folder / 'evaluation' / 'result.json', {
        'task': 'cola', 'models': ['run'], 'source': 'glue', 'eval/matthews': 0.5,
        'files': ['dev_predictions.tsv']})
    _write(folder / 'sweep' / 'sweep.json', {'config': 'a.py', 'settings': []})
    _write(folder / 'sweep' / 'runs' / 'seed=1' / 'sweep_result.json', {
        'metric': 'eval/f1', 'eval/f1': 0.5, 'host': 'vm'})
    _write(folder / 'sweep' / 'runs' / 'seed=1' / 'goodput.json', _GOODPUT)
    _write(folder / 'sweep' / 'runs' / 'seed=2' / 'sweep_failed.json', {'time': 1.0})


def _make_sentences(folder: Path) -> None:
    shutil.copytree(_FIXTURES / 'base', folder)
    package = 'sentence_transformers.models'
    _write(folder / 'modules.json', [
        {'idx': 0, 'name': '0', 'path': '', 'type': f'{package}.Transformer'},
        {'idx': 1, 'name': '1', 'path': '1_Pooling', 'type': f'{package}.Pooling'}])
    _write(folder / '1_Pooling' / 'config.json', {
        'word_embedding_dimension': 8, 'pooling_mode_mean_tokens': True, 'include_prompt': True})
    _write(folder / 'sentence_bert_config.json', {'max_seq_length': 8, 'do_lower_case': False})
    _write(folder / 'config_sentence_transformers.json', {
        'prompts': {'query': 'a '}, 'default_prompt_name': None, 'similarity_fn_name': 'cosine'})


def _make_run(folder: Path, weights: Any) -> None:
    write_run(folder, weights)
    describe_run(as_path(folder), _run_fields(), weights.vocab_file)
    records = [{'step': step, 'train/loss': 2.0, 'time/step': 1.0} for step in (1, 2, 3, 4)]
    _write(folder / 'metrics.jsonl', *records, {'step': 4, 'eval/mlm_accuracy': 0.3})
    _write(folder / 'goodput.json', _GOODPUT)
    _write(folder / 'preflight.json', {'chip_hours': 3.5})
    _write(folder / '.claim-7', {
        'token': 'ab', 'host': 'other', 'pid': 123, 'machine': 'x', 'started': '1', 'beat': 3})


# Any reader may meet these; numbers beyond any float, texts beyond any terminal.
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 0.3, -0.5, 1e300, float('nan'), float('inf'), -2**63, 10**30,
    10**400, '', 'x', '3', 'a\nb', '\x1b[31mred', '\x00', '../x', '/etc/passwd', '\ud800',
    'x' * 5000,    [], {}, [1], [[]], [None], {'a': 1}, {'a': None}, {'0': [1]}, ['a', 'b'],
)


def _places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all values inside a value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*way, key)
            yield from _places(inner, (*way, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield (*way, number)
            yield from _places(inner, (*way, number))


def spoil(rng: random.Random, content: Any) -> tuple[Any, str]:
    """(A copy with one value replaced, left out or added, what was done)."""
    content = json.loads(json.dumps(content))
    places = list(_places(content))
    how = rng.choice(('replace', 'replace', 'replace', 'replace', 'drop', 'add', 'whole'))
    value = rng.choice(_VALUES)
    if how == 'whole' or not places:
        return value, f'whole file = {value!r:.80}'
    # A key of the top first: most values of a config are deep in lists that nobody reads.
    top = rng.choice(sorted({place[0] for place in places}, key=str))
    way = rng.choice([place for place in places if place[0] == top][:20])
    inner = content
    for key in way[:-1]:
        inner = inner[key]
    if how == 'drop':
        del inner[way[-1]]
    elif how == 'add' and isinstance(inner, dict):
        inner[rng.choice(_UNKNOWN)] = value
    elif how == 'add':
        inner.append(value)
    else:
        inner[way[-1]] = value
    return content, f'{how} {way} = {value!r:.80}'


_UNKNOWN = ('bert_jax_inference', 'labels', 'head', 'phases', 'inference', 'architectures', 'step',
            'id2label', 'problem_type', 'time', 'pid', 'seconds', 'quantization_config', 'x')


def spoil_file(rng: random.Random, path: Path) -> str:
    """Spoils a value of a file and says which."""
    text = path.read_text()
    if path.suffix == '.jsonl':
        lines = text.splitlines()
        number = rng.randrange(len(lines))
        spoiled, done = spoil(rng, json.loads(lines[number]))
        lines[number] = json.dumps(spoiled)
        path.write_text('\n'.join(lines) + '\n')
        return f'line {number + 1}: {done}'
    content = json.loads(text)
    if isinstance(content, dict):
        content.pop('digest', None)  # with it, any change is refused before it is read
    spoiled, done = spoil(rng, content)
    path.write_text(json.dumps(spoiled))
    return done


def draw(rng: random.Random, folder: Path, things: Path) -> Case:
    """A file in which a value is spoiled, and what reads it."""
    reader = rng.choice(READERS)
    top = reader.file.partition('/')[0]
    shutil.copytree(things / 'json' / top, folder / top)
    done = spoil_file(rng, folder / reader.file)
    return Case(
        done=f'{reader.file}: {done}', act=lambda: reader.read(folder), made=(top, 'new'))
