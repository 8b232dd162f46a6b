"""What this machine's CPUs do, beside Hugging Face's programs: the table of docs/speed.md.

    python -m benchmarks.page FOLDER --sentences sentences.txt --vocab_file vocab.txt --glue glue \\
        --text 'wiki/*.txt.gz' [--only=step,vectors-base-400] [--minutes=5]

It measures one row of the table after another: both programs on all cores, each in a process of its
own, in turn (A-B-B-A), in the environment as it is; GLIBC_TUNABLES, say, holds for both or for
neither. Weights are random: speed does not depend on them. FOLDER receives a JSON file of each row,
with every measurement and the machine. A measurement that is there is not made again: a stopped
command goes on where it was, and so does one that --minutes ended, which begins nothing after them.
At last it prints the table of the rows that are measured whole, page.md in FOLDER. All rows take an
hour; nothing else should run meanwhile: the table says the load.

Needs `pip install torch==2.13.0 transformers datasets`. Linux only.
"""

import argparse
import contextlib
import datetime
import glob
import gzip
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import huggingface_features, huggingface_finetune
from benchmarks.in_turn import measure_ours, measure_peer
from benchmarks.worker import Worker, run
from bert_jax.runtime.provenance import made_by, processor, versions_of

MODELS = {'base': (12, 768, 12), 'minilm': (6, 384, 12)}  # layers, hidden size, heads
TITLES = {'base': 'Base', 'minilm': 'MiniLM'}
OURS = 'ours'
FILES = ('sentences', 'vocab_file', 'glue', 'text')  # options that name what is measured

Options = argparse.Namespace
# What a piece of work took: `seconds`, `peak_memory` in bytes, perhaps `cpu_seconds`.
Measurement = dict[str, Any]
Work = Callable[[], Measurement]


class Row(NamedTuple):
    """A row of the table, or a line of it for each peer.

    Attributes:
      what: the work.
      programs: starts the programs and gives the work of each, by name, ours first.
      rounds: how often each is measured.
    """

    what: str
    programs: Callable[[Options], AbstractContextManager[Mapping[str, Work]]]
    rounds: int


def rows() -> dict[str, Row]:
    """All rows by name, in the order of the table."""
    result = {'step': Row('train step, Base, 8 x 128, float32', step_programs, 3)}
    for model, title in TITLES.items():
        for count in (400, 3000):
            rounds = 2 if (model, count) == ('base', 3000) else 3
            result[f'vectors-{model}-{count}'] = Row(
                f'vectors of {count:,} sentences, {title}', vector_programs(model, count), rounds)
    for model, steps, rounds in (('base', 8, 2), ('minilm', 30, 3)):
        for task in ('mrpc', 'cola'):
            result[f'finetune-{model}-{task}'] = Row(
                f'fine-tuning, {steps} steps of 32, {task.upper()}, {TITLES[model]}',
                finetune_programs(model, task, steps), rounds)
    result['prepare'] = Row('text to ids on a disk, whole commands', prepare_programs, 3)
    for name, (what, programs) in STARTS.items():
        result[f'start-{name}'] = Row(what, programs, 3)
    return result


@contextlib.contextmanager
def step_programs(options: Options) -> Iterator[dict[str, Work]]:
    """Seconds of a step."""
    batch_size = 8
    flags = ['--model=base', f'--batch_size={batch_size}', '--dtype=float32', '--steps=6',
             '--warmup=2']
    peer = f'{sys.executable} benchmarks/huggingface_pretrain.py --variant=tuned'

    def ours() -> Measurement:
        measured, _ = measure_ours(flags)
        return {'seconds': batch_size / measured.rate, 'peak_memory': measured.peak_memory}

    def theirs() -> Measurement:
        measured = measure_peer(peer, flags[1:])
        return {'seconds': batch_size / measured.rate, 'peak_memory': measured.peak_memory}

    yield {OURS: ours, 'compiled, head where masked': theirs}


def vector_programs(
    model: str, count: int
) -> Callable[[Options], AbstractContextManager[Mapping[str, Work]]]:
    """Seconds of the vectors of so many sentences."""
    @contextlib.contextmanager
    def programs(options: Options) -> Iterator[dict[str, Work]]:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as workers:
            make_model(options, model, folder)
            yield {name: workers.enter_context(Worker(
                folder, 'huggingface_features', name, f'--model={folder}',
                f'--sentences={options.sentences}', f'--num_sentences={count}',
            )) for name in (OURS, *huggingface_features.PEERS)}

    return programs


def finetune_programs(
    model: str, task: str, steps: int
) -> Callable[[Options], AbstractContextManager[Mapping[str, Work]]]:
    """Seconds of so many steps."""
    @contextlib.contextmanager
    def programs(options: Options) -> Iterator[dict[str, Work]]:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as workers:
            make_model(options, model, folder)
            flags = [f'--model={folder}', f'--data={options.glue}', f'--task={task}']
            run([sys.executable, '-m', 'benchmarks.huggingface_finetune', '--program=examples',
                 *flags])
            yield {name: workers.enter_context(Worker(
                folder, 'huggingface_finetune', name, *flags, f'--steps={steps}',
            )) for name in (OURS, huggingface_finetune.PEER)}

    return programs


def make_model(options: Options, name: str, folder: str) -> None:
    """Random weights for both programs, made by a third: this one has to stay small.

    A process counts the memory of the one that started it as its own.
    """
    layers, hidden, heads = MODELS[name]
    run([sys.executable, '-m', 'benchmarks.huggingface_features', '--program=model',
         f'--model={folder}', f'--vocab_file={options.vocab_file}', f'--layers={layers}',
         f'--hidden={hidden}', f'--heads={heads}'])


@contextlib.contextmanager
def prepare_programs(options: Options) -> Iterator[dict[str, Work]]:
    """What the whole commands take, and the size of the text."""
    size = {'text_bytes': text_bytes(str(options.text))}

    def ours() -> Measurement:
        with tempfile.TemporaryDirectory() as folder:
            return size | command(
                '-m', 'bert_jax.tools.prepare', '--config=configs/base_pretrain.py',
                f'--config.data.source={options.text}', f'--config.data.dir={folder}',
                f'--config.data.vocab_file={options.vocab_file}', '--config.data.held_out=0.0')

    def theirs() -> Measurement:
        return size | command('benchmarks/huggingface_prepare.py', f'--text={options.text}',
                       f'--vocab_file={options.vocab_file}')

    yield {OURS: ours, '`datasets.map`, fast tokenizer': theirs}


def text_bytes(pattern: str) -> int:
    """Of these files, unpacked."""
    total = 0
    for path in glob.glob(pattern):
        with (gzip.open if path.endswith('.gz') else open)(path, 'rb') as file:
            while part := file.read(1 << 20):
                total += len(part)
    return total


def command(*arguments: str, until: str = '') -> Measurement:
    """What a command of Python takes, to its end or to a line of its output."""
    return run([sys.executable, *arguments], until).costs()


def whole_command(
    *arguments: str
) -> Callable[[Options], AbstractContextManager[Mapping[str, Work]]]:
    """What a command takes that needs no preparation."""
    return lambda options: contextlib.nullcontext({OURS: lambda: command(*arguments)})


@contextlib.contextmanager
def first_step(is_kept: bool) -> Iterator[dict[str, Work]]:
    """From a command to its first step, with the compiled programs of an earlier run or without."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, 'data')

        def work() -> Measurement:
            if not is_kept:
                shutil.rmtree(data, ignore_errors=True)
            with tempfile.TemporaryDirectory() as workdir:
                return command(
                    '-m', 'bert_jax.main', '--config=configs/base_pretrain.py',
                    f'--workdir={workdir}', f'--config.data.dir={data}', '--config.task=synthetic',
                    '--config.phases=()', '--config.train.steps=100', '--config.train.batch_size=8',
                    until='first step done')

        if is_kept:
            work()
        yield {OURS: work}


@contextlib.contextmanager
def first_vector(options: Options, is_kept: bool) -> Iterator[dict[str, Work]]:
    """A command that predicts for one text, with the compiled programs of another or without.

    These are in a folder of the user's home, which is another one here.
    """
    with tempfile.TemporaryDirectory() as folder:
        make_model(options, 'minilm', folder)
        home = Path(folder, 'home')

        def work() -> Measurement:
            if not is_kept:
                shutil.rmtree(home, ignore_errors=True)
            home.mkdir(exist_ok=True)
            with changed_home(home):
                return command('-m', 'bert_jax.predict', 'features', '--pool=mean',
                               f'--model={folder}', 'A sentence.')

        if is_kept:
            work()
        yield {OURS: work}


@contextlib.contextmanager
def changed_home(folder: Path) -> Iterator[None]:
    """With another home, which processes that are started see."""
    before = os.environ.get('HOME')
    os.environ['HOME'] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ['HOME']
        else:
            os.environ['HOME'] = before


# Rows that are compared with no other program.
STARTS: dict[str, tuple[str, Callable[[Options], AbstractContextManager[Mapping[str, Work]]]]] = {
    'import': ('`import bert_jax`', whole_command('-c', 'import bert_jax')),
    'help': ('`bert_jax.main --help`', whole_command('-m', 'bert_jax.main', '--help')),
    'step': ('command to first step, Base, 8 x 128', lambda options: first_step(False)),
    'step-kept': ('the same with the compiled program kept', lambda options: first_step(True)),
    'vector': ('`predict features` of one text, MiniLM',
               lambda options: first_vector(options, False)),
    'vector-kept': ('the same with the compiled programs kept',
                    lambda options: first_vector(options, True)),
}


def turns(names: Sequence[str], rounds: int) -> list[str]:
    """Who is measured when: A, B, B, A, ..."""
    order: list[str] = []
    for number in range(rounds):
        order.extend(names if number % 2 == 0 else reversed(names))
    return order


def conditions(options: Options) -> dict[str, Any]:
    """What all measurements of a row have to share: the machine, versions, code and files."""
    packages = ('jax', 'torch', 'transformers', 'datasets', 'tokenizers', 'tensorflow')
    return {
        'processor': processor(), 'cores': len(os.sched_getaffinity(0)),
        'GLIBC_TUNABLES': os.environ.get('GLIBC_TUNABLES', ''), 'versions': versions_of(packages),
        'code': made_by()['code'],
        'files': {name: str(getattr(options, name)) for name in FILES}}


def measure(row: Row, options: Options, path: Path, deadline: float) -> None:
    """Makes the measurements of a row that its file lacks, until the deadline.

    Args:
      row: what is measured.
      options: of the command.
      path: the row's file.
      deadline: as `time.monotonic` has it.

    Raises:
      SystemExit: the file is of another machine, other versions, code or files.
    """
    record: dict[str, Any] = {'machine': conditions(options), 'programs': [], 'measurements': []}
    if path.exists():
        kept = json.loads(path.read_text())
        if kept['machine'] != record['machine']:
            raise SystemExit(
                f'{path} is of another machine, other versions, code or files: remove it')
        record = kept
    done = len(record['measurements'])
    if record['programs'] and done >= len(turns(record['programs'], row.rounds)):
        return
    with row.programs(options) as programs:
        record['programs'] = list(programs)
        for name in turns(record['programs'], row.rounds)[done:]:
            if time.monotonic() > deadline:
                return
            load = os.getloadavg()[0]
            measurement = programs[name]()
            record['measurements'].append(measurement | {
                'program': name, 'load_before': load,
                'date': datetime.datetime.now().isoformat(timespec='seconds')})
            print(f"{path.stem}: {name} {measurement['seconds']:.2f} s", flush=True)
            part = path.with_suffix('.part')
            part.write_text(json.dumps(record, indent=1))
            part.rename(path)


def table(records: Mapping[str, dict[str, Any]]) -> str:
    """The page, in Markdown, of the rows that are measured whole.

    Args:
      records: by the names of rows.
    """
    compared = ['| work | Hugging Face | times its speed | seconds | its | GB | its |',
                '|---|---|---|---|---|---|---|']
    alone = ['| start | seconds | CPU seconds | GB |', '|---|---|---|---|']
    machines = set()
    loads = [0.0]
    for name, row in rows().items():
        record = records.get(name)
        if not record or len(record['measurements']) < row.rounds * len(record['programs']):
            continue
        for measurement in record['measurements']:
            loads.append(measurement['load_before'])
        machines.add(described(record))
        lines = alone if len(record['programs']) == 1 else compared
        lines.extend(lines_of(row, record))
    notes = [*sorted(machines), f'load before a measurement: {max(loads):.1f} at most']
    return '\n'.join([*compared, '', *alone, '', *(f'- {note}' for note in notes), ''])


def lines_of(row: Row, record: dict[str, Any]) -> list[str]:
    """The lines of a row: one for each peer, or one if there is none."""
    found: dict[str, list[Measurement]] = {name: [] for name in record['programs']}
    for measurement in record['measurements']:
        found[measurement['program']].append(measurement)
    ours = found.pop(OURS)
    if not found:
        return [f"| {row.what} | {spread([each['seconds'] for each in ours])} | "
                f"{spread([each['cpu_seconds'] for each in ours])} | {gigabytes(ours)} |"]
    what = row.what
    if 'text_bytes' in ours[0]:
        what += f", {ours[0]['text_bytes'] / 1e6:.0f} MB"
    lines = []
    for name, theirs in found.items():
        ratios = [its['seconds'] / own['seconds'] for own, its in zip(ours, theirs, strict=True)]
        lines.append(
            f'| {what} | {name} | {spread(ratios)} | {median_seconds(ours)} | '
            f'{median_seconds(theirs)} | {gigabytes(ours)} | {gigabytes(theirs)} |')
    return lines


def described(record: dict[str, Any]) -> str:
    """The machine and the day of a row."""
    of = record['machine']
    versions = ', '.join(f'{name} {version}' for name, version in of['versions'].items())
    tunables = of['GLIBC_TUNABLES'] or 'not set'
    day = record['measurements'][-1]['date'][:10]
    return f"{of['cores']} cores of {of['processor']}, {day}; GLIBC_TUNABLES {tunables}; {versions}"


def spread(values: Sequence[float]) -> str:
    """Median (smallest-largest)."""
    return f'{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})'


def median_seconds(measurements: Sequence[Measurement]) -> str:
    """The median of their seconds, in three digits."""
    seconds = statistics.median(each['seconds'] for each in measurements)
    return f'{seconds:.{1 if seconds >= 10 else 2}f}'


def gigabytes(measurements: Sequence[Measurement]) -> str:
    """The largest of their peaks."""
    return f"{max(each['peak_memory'] for each in measurements) / 1e9:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path)
    parser.add_argument('--sentences', required=True, help='file, one a line, 3,000 or more')
    parser.add_argument('--vocab_file', required=True, help="such as bert-base-uncased's")
    parser.add_argument('--glue', required=True, help="the benchmark's folder")
    parser.add_argument('--text', required=True, help='files of text, 100 MB or more')
    parser.add_argument('--only', default='', help='rows, or how their names begin, with commas')
    parser.add_argument('--minutes', type=float, default=1e9, help='begin nothing after them')
    options = parser.parse_args()
    for name in ('folder', *FILES):
        setattr(options, name, Path(os.path.abspath(getattr(options, name))))
    # Where it is set, each process compiles all modules anew, which takes longer than a start.
    os.environ.pop('PYTHONDONTWRITEBYTECODE', None)
    deadline = time.monotonic() + 60 * options.minutes
    chosen = {name: row for name, row in rows().items()
              if name.startswith(tuple(options.only.split(',')))}
    if not chosen:
        parser.error(f"--only={options.only}: choose from {', '.join(rows())}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, row in chosen.items():
        if time.monotonic() < deadline:
            measure(row, options, options.folder / f'{name}.json', deadline)
    records = {}
    for path in options.folder.glob('*.json'):
        records[path.stem] = json.loads(path.read_text())
    page = table(records)
    (options.folder / 'page.md').write_text(page)
    print(page)


if __name__ == '__main__':
    main()
