"""Compares the train step with a peer's on the same sizes, run in turn (A-B-B-A) on CPUs.

    python -m benchmarks.in_turn [--repeats=4] \\
        --peer='peer/bin/python benchmarks/huggingface_pretrain.py' --model=base --batch_size=8 ...

The other flags are those of bert_jax.tools.bench. The peer is a command: it gets --layers --hidden
--heads --vocab_size --batch_size --seq --predictions --dtype --steps --warmup and prints a JSON
object with `sequences_per_second` as its last line. Each measurement has a process and a warm-up
of its own. The ratio is the median over pairs of successive measurements, so that other load on the
machine cancels out. (The page's row of it is `python -m benchmarks.page --only=step`.)
"""

import argparse
import json
import shlex
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.worker import run

SIZES = ('layers', 'hidden', 'heads', 'vocab_size', 'batch_size', 'seq', 'predictions', 'dtype',
         'steps', 'warmup')


class Measured(NamedTuple):
    """One measurement of a program: sequences/s, and bytes of its process at most."""

    rate: float
    peak_memory: int


def measure_ours(flags: list[str]) -> tuple[Measured, list[str]]:
    """(What bert_jax does, the flags with its sizes for the peer)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'step.json'
        finished = run([
            sys.executable, '-m', 'bert_jax.tools.bench', '--repeats=1', f'--json={path}', *flags])
        (step,) = json.loads(path.read_text())['results']
    rate = next(
        figure['median'] for figure in step['figures'] if figure['unit'] == 'sequences/s')
    sizes = [f"--{name}={step['settings'][name]}" for name in SIZES]
    return Measured(rate, finished.peak_memory), sizes


def measure_peer(peer: str, sizes: list[str]) -> Measured:
    """What the peer does."""
    finished = run([*shlex.split(peer), *sizes])
    last_line = finished.output.strip().splitlines()[-1]
    return Measured(float(json.loads(last_line)['sequences_per_second']), finished.peak_memory)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--peer', required=True)
    parser.add_argument('--repeats', type=int, default=4)
    options, flags = parser.parse_known_args()
    sizes: list[str] = []
    rates: dict[str, list[float]] = {'ours': [], 'peer': []}
    for number in range(options.repeats):
        order = ('ours', 'peer') if number % 2 == 0 else ('peer', 'ours')
        for program in order:
            if program == 'ours':
                measured, sizes = measure_ours(flags)
            else:
                measured = measure_peer(options.peer, sizes)
            rates[program].append(measured.rate)
            print(f'{program}: {measured.rate:.2f} sequences/s', flush=True)
    ratios = [ours / peer for ours, peer in zip(rates['ours'], rates['peer'], strict=True)]
    ours = statistics.median(rates['ours'])
    peer = statistics.median(rates['peer'])
    print(f'ours {ours:.2f}, peer {peer:.2f} sequences/s; ours / peer '
          f'{statistics.median(ratios):.3f} ({min(ratios):.3f} - {max(ratios):.3f})')


if __name__ == '__main__':
    main()
