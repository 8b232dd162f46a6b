"""Abuse at random: `fuzz` damages files, `careless` opens careless tables with careless flags.

    python -m tests.abuse fuzz|careless --cases=2000 --seed=0

A case is a function of the seed and its number; `--only=N` runs one again and shows its output.
"""

import argparse
import collections
import sys

from tests.abuse import careless, fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('what', choices=('fuzz', 'careless'))
    parser.add_argument('--cases', type=int, default=500)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--only', type=int, help='the number of one case')
    options = parser.parse_args()
    numbers = range(options.cases) if options.only is None else [options.only]
    table: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    run = {'fuzz': fuzz.run_all, 'careless': careless.run}[options.what]
    for number, group, outcome, printed in run(numbers, options.seed):
        table[group][outcome.partition(':')[0]] += 1
        print(f'{number} {group}: {outcome}', flush=True)
        if options.only is not None or outcome.startswith('HARM'):
            print(printed[-6000:], flush=True)
    for group, counts in table.items():
        print(group, dict(counts))
    return any(counts['HARM'] for counts in table.values())


if __name__ == '__main__':
    sys.exit(main())
