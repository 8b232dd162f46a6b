"""Measures what an engine adds to the shares of a store: a pool of processes, Beam, Dask in turn.

    BEAM/bin/python -m benchmarks.engines --text='wiki/*.txt.gz' --vocab_file=vocab.txt

BEAM is an environment of requirements-beam.txt. Each measurement has a process of its own, and two
workers: of the pool, of Beam's DirectRunner, or of a Dask cluster on this machine. It takes the
text in shares of `--share_mb`, and then as many tiny files as `--tiny` says, each of which is a
share: so the second shows what a share costs. Seconds are from the first share to the store,
without imports; CPU seconds are of all processes, with them. The stores are compared.
"""

import argparse
import contextlib
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bert_jax.corpus import store_building
from bert_jax.corpus.sources import open_source
from bert_jax.text.kinds import load_tokenizer

ENGINES = ('pool', 'beam', 'dask')
WORKERS = 2


@contextlib.contextmanager
def engine_options(engine: str) -> Iterator[list[str]]:
    """Beam's options for an engine, whose workers end with the block."""
    if engine == 'beam':
        yield ['--runner=DirectRunner', '--direct_running_mode=multi_processing',
               f'--direct_num_workers={WORKERS}']
        return
    from distributed import LocalCluster, default_client

    with LocalCluster(n_workers=WORKERS, threads_per_worker=1, host='127.0.0.1',
                      dashboard_address=None, silence_logs='CRITICAL') as cluster:
        yield ['--runner=apache_beam.runners.dask.dask_runner.DaskRunner',
               f'--dask_client_address={cluster.scheduler_address}']
        default_client().close()


def measure(options: argparse.Namespace) -> None:
    """Builds a store with one engine, and prints what it took."""
    store_building._SHARE_BYTES = round(options.share_mb * 2**20)
    tokenizer = load_tokenizer(options.vocab_file, True)
    with tempfile.TemporaryDirectory() as folder:
        build = store_building.open_build(open_source(options.text), tokenizer, folder, False)
        started = time.perf_counter()
        if options.engine == 'pool':
            store_building.make_shares(build, num_processes=WORKERS)
            store_building.finish(build)
        else:
            from bert_jax.corpus import beam_shares

            started = time.perf_counter()
            with engine_options(options.engine) as for_beam:
                beam_shares.run(build, for_beam)
        seconds = time.perf_counter() - started
        content = hashlib.sha256()
        for path in sorted(Path(build.folder).rglob('*')):
            if path.is_file():
                content.update(path.read_bytes())
    print(json.dumps({
        'seconds': seconds, 'shares': len(build.shares), 'store': content.hexdigest()}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--text', required=True)
    parser.add_argument('--vocab_file', required=True)
    parser.add_argument('--share_mb', type=float, default=24)
    parser.add_argument('--tiny', type=int, default=50)
    parser.add_argument('--repeats', type=int, default=2)
    parser.add_argument('--engine', choices=ENGINES, help=argparse.SUPPRESS)  # of one measurement
    options = parser.parse_args()
    if options.engine:
        measure(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.tiny):
            Path(folder, f'{number:05}.txt').write_text(f'The text of share number {number}.\n')
        compare(options, options.text, options.share_mb)
        compare(options, f'{folder}/*.txt', 0)


def compare(options: argparse.Namespace, text: str, share_mb: float) -> None:
    """Runs the engines in turn, forwards and backwards, and prints a row of each."""
    seconds: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    cpu: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    stores: set[str] = set()
    num_shares = 0
    for number in range(options.repeats):
        for engine in ENGINES[::1 if number % 2 == 0 else -1]:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            process = subprocess.run(
                [sys.executable, '-m', 'benchmarks.engines', f'--engine={engine}', '--text', text,
                 f'--vocab_file={options.vocab_file}', f'--share_mb={share_mb}'],
                check=True, stdout=subprocess.PIPE, text=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            found = json.loads(process.stdout.splitlines()[-1])
            print(f"{engine}: {found['seconds']:.1f} s", flush=True)
            seconds[engine].append(found['seconds'])
            cpu[engine].append(
                after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            stores.add(found['store'])
            num_shares = found['shares']
    print(f'{text}: {num_shares} shares, {options.repeats} measurements, '
          f'{"the same bytes" if len(stores) == 1 else "DIFFERENT STORES"}, load '
          f'{os.getloadavg()[1]:.1f} on {os.cpu_count()} cores')
    print(f'{"":6} {"s":>16} {"CPU s":>16} {"more CPU s a share":>20}')
    for engine in ENGINES:
        more = (min(cpu[engine]) - min(cpu['pool'])) / num_shares
        print(f'{engine:6} {shown(seconds[engine]):>16} {shown(cpu[engine]):>16} {more:>20.3f}')


def shown(values: list[float]) -> str:
    """The median, and the smallest and largest."""
    return f'{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})'


if __name__ == '__main__':
    main()
