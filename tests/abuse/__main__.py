"""Random damage and carelessness: a command gives the right result, or says in one line why not.

    python -m tests.abuse campaign|fuzz|kills --cases=1000 --seed=0

campaign draws careless and hostile cases of many classes (see `tests.abuse.campaign`;
--classes=flags,streams takes those whose names begin so), fuzz damages files (see
`tests.abuse.fuzz`), kills kills commands that write (see `tests.abuse.kills`). Anything but a right
result or an error in one line is harm: a traceback, another result, NaN, a hang, another file
changed.

A case is a function of the seed and its number; `--only=N` runs one again and shows its output.
"""

import argparse
import collections
import functools
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.abuse.campaign import CLASSES, campaign
from tests.abuse.fuzz import fuzz_all
from tests.abuse.kills import kills


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('what', choices=('campaign', 'fuzz', 'kills'))
    parser.add_argument('--cases', type=int, default=500)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--only', type=int, help='the number of one case')
    parser.add_argument('--classes', default='', help='of the campaign, by how their names begin')
    options = parser.parse_args()
    groups = tuple(CLASSES)
    if options.classes:
        if options.what != 'campaign':
            parser.error(f'--classes is of the campaign: {options.what} has none')
        groups = _chosen(options.classes.split(','), parser)
    numbers = range(options.cases) if options.only is None else [options.only]
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    run = {'fuzz': fuzz_all, 'kills': kills,
           'campaign': functools.partial(campaign, groups=groups)}[options.what]
    with tempfile.TemporaryDirectory() as folder:
        for case in run(numbers, options.seed, Path(folder)):
            counts[case.group, re.split(r':| \(', case.result)[0]] += 1
            print(f'{case.number} {case.group}: {case.result} ({case.seconds:.0f} s)', flush=True)
            if options.only is not None or case.result.startswith('HARM'):
                print(case.printed[-6000:], flush=True)
    for (group, result), count in sorted(counts.items()):
        print(f'{group}: {result}: {count}')
    return any(result == 'HARM' for _, result in counts)


def _chosen(beginnings: Sequence[str], parser: argparse.ArgumentParser) -> tuple[str, ...]:
    """The classes whose names begin so; ends the process where one begins none."""
    for beginning in beginnings:
        if not beginning or not any(name.startswith(beginning) for name in CLASSES):
            names = ', '.join(CLASSES)
            parser.error(f'--classes: no class begins with {beginning!r}; there are {names}')
    return tuple(name for name in CLASSES if name.startswith(tuple(beginnings)))


if __name__ == '__main__':
    sys.exit(main())
