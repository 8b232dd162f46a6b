"""Random damage and carelessness: a command gives the right result, or says in one line why not.

    python -m tests.abuse fuzz|careless|foreign|kills --cases=2000 --seed=0

fuzz damages files (see `tests.abuse.fuzz`), careless makes mistakes in tables and flags (see
`tests.abuse.careless`), foreign puts other values into JSON (see `tests.abuse.foreign`), kills
kills commands that write (see `tests.abuse.kills`). Anything but a right result or an error in one
line is harm: a traceback, another result, NaN, a hang, another file changed.

A case is a function of the seed and its number; `--only=N` runs one again and shows its output.
"""

import argparse
import collections
import sys
import tempfile
from pathlib import Path

from tests.abuse.careless import careless
from tests.abuse.foreign import foreign
from tests.abuse.fuzz import fuzz_all
from tests.abuse.kills import kills


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('what', choices=('fuzz', 'careless', 'foreign', 'kills'))
    parser.add_argument('--cases', type=int, default=500)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--only', type=int, help='the number of one case')
    options = parser.parse_args()
    numbers = range(options.cases) if options.only is None else [options.only]
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    run = {'fuzz': fuzz_all, 'careless': careless, 'foreign': foreign, 'kills': kills}[options.what]
    with tempfile.TemporaryDirectory() as folder:
        for case in run(numbers, options.seed, Path(folder)):
            counts[case.group, case.result.partition(':')[0]] += 1
            print(f'{case.number} {case.group}: {case.result}', flush=True)
            if options.only is not None or case.result.startswith('HARM'):
                print(case.printed[-6000:], flush=True)
    for (group, result), count in sorted(counts.items()):
        print(f'{group}: {result}: {count}')
    return any(result == 'HARM' for _, result in counts)


if __name__ == '__main__':
    sys.exit(main())
