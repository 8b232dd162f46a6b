"""Small mistakes put into the package, one at a time: the share that the tests notice.

    python -m tests.mutants list --output=mutants.json [--count=120] [--seed=0]
    python -m tests.mutants cover --output=lines.json [PYTEST ARGUMENTS]
    python -m tests.mutants run mutants.json lines.json --output=killed.json

`list` draws mutants of the spine: by file in proportion to its lines, in functions, one changed
operator, constant or condition each. `cover` runs the tests once, in this process, and writes which
lines each enters (it needs Python 3.12, whose `sys.monitoring` costs little; with `--quick`, only
the tests of the quick part). `run` takes each mutant in turn: it changes the file, runs the tests
that enter its line until one fails, and puts the file back. So it needs a checkout of its own. The
tests of the quick part come first, then those that enter the fewest lines, and the result says
which of the two noticed.

A mutant is found again by its function and the text of its line: a list made before a change
can be run after it, and what is not found any more is counted apart.
"""

import argparse
import ast
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.test_imports import ROOT, SPINE

MOST_TESTS = 60  # of a mutant, of the quick part and of the rest; those with fewer lines first
MOST_SECONDS = 600  # of a mutant, likewise
# Both directions of each are mistakes that people make.
_COMPARISONS = {
    ast.Lt: '<=', ast.LtE: '<', ast.Gt: '>=', ast.GtE: '>', ast.Eq: '!=', ast.NotEq: '==',
    ast.Is: 'is not', ast.IsNot: 'is', ast.In: 'not in', ast.NotIn: 'in',
}
_PATH = re.compile('folder|path|dir|file|parent|name|place|copies', re.IGNORECASE)  # FOLDER / NAME
_ARITHMETIC = {
    ast.Add: '-', ast.Sub: '+', ast.Mult: '/', ast.Div: '*', ast.FloorDiv: '*', ast.Mod: '+',
    ast.BitAnd: '|', ast.BitOr: '&', ast.LShift: '>>', ast.RShift: '<<',
}


class Mutant(NamedTuple):
    """One mistake.

    Attributes:
      file: from the repository's root.
      function: with the classes and functions around it, joined by dots.
      line: the line's text, without white space at its ends.
      column: of the expression, counted from the line's first character that is no space.
      before, after: the text of the expression, on one line.
    """

    file: str
    function: str
    line: str
    column: int
    before: str
    after: str


def _functions(tree: ast.AST, prefix: str = '') -> Iterator[tuple[str, ast.AST]]:
    """Each function of a module with its full name; one within another is the outer's, too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = f'{prefix}{node.name}'
            if isinstance(node, ast.FunctionDef):
                yield name, node
            yield from _functions(node, f'{name}.')
        else:
            yield from _functions(node, prefix)


def _changed(node: ast.AST, text: str) -> str | None:
    """The expression with a mistake in it; None if none is known."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        operator = _COMPARISONS[type(node.ops[0])]
        return f'{ast.unparse(node.left)} {operator} {ast.unparse(node.comparators[0])}'
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        if isinstance(node.op, ast.Div) and _PATH.search(text):
            return None
        if isinstance(node.left, ast.JoinedStr) or isinstance(node.right, ast.JoinedStr):
            return None
        operator = _ARITHMETIC[type(node.op)]
        return f'({ast.unparse(node.left)}) {operator} ({ast.unparse(node.right)})'
    if isinstance(node, ast.BoolOp):
        operator = ' or ' if isinstance(node.op, ast.And) else ' and '
        return '(' + operator.join(f'({ast.unparse(value)})' for value in node.values) + ')'
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return f'bool({ast.unparse(node.operand)})'
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            return str(not node.value)
        if isinstance(node.value, int):
            return str(node.value + 1)
    return None


def _is_of_a_message(node: ast.AST) -> bool:
    """Whether a statement only raises or asserts: mistakes there change words, or nothing."""
    return isinstance(node, ast.Raise | ast.Assert)


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions that run when a function does; no annotations, defaults or inner functions."""
    parts = node.body if isinstance(node, ast.FunctionDef) else list(ast.iter_child_nodes(node))
    for part in parts:
        if isinstance(part, ast.FunctionDef | ast.ClassDef) or _is_of_a_message(part):
            continue
        if isinstance(part, ast.AnnAssign):
            if part.value is not None:
                yield from _with_inner(part.value)
            continue
        if isinstance(part, ast.expr):
            yield from _with_inner(part)
        else:
            yield from _expressions(part)


def _with_inner(expression: ast.expr) -> Iterator[ast.expr]:
    """An expression and those in it, without the texts of f-strings."""
    if isinstance(expression, ast.JoinedStr):
        return
    yield expression
    for part in ast.walk(expression):
        if isinstance(part, ast.JoinedStr):
            return
        if isinstance(part, ast.expr) and part is not expression:
            yield part


def mutants_of(file: str) -> list[Mutant]:
    """All mutants of a file, in the order of its lines."""
    source = (ROOT / file).read_text(encoding='utf-8')
    lines = source.splitlines()
    found = {}
    for name, function in _functions(ast.parse(source)):
        for node in _expressions(function):
            line = lines[node.lineno - 1]
            # Columns are bytes: lines with other characters than ASCII are left out.
            if node.lineno != node.end_lineno or not line.isascii():
                continue
            before = line[node.col_offset : node.end_col_offset]
            after = _changed(node, before)
            if after is not None and '\n' not in after:
                column = node.col_offset - (len(line) - len(line.lstrip()))
                mutant = Mutant(file, name, line.strip(), column, before, after)
                found[mutant] = node.lineno
    return sorted(found, key=lambda mutant: (found[mutant], mutant.column, mutant.after))


def draw(count: int, seed: int) -> list[Mutant]:
    """Mutants of the spine, by file in proportion to its lines; the first few are such, too."""
    rng = random.Random(seed)
    files = []
    weights = []
    for name in SPINE:
        folder = ROOT / 'bert_jax' / name
        for path in sorted(folder.rglob('*.py')) or [folder.with_suffix('.py')]:
            file = path.relative_to(ROOT).as_posix()
            if mutants_of(file):
                files.append(file)
                weights.append(len(path.read_text(encoding='utf-8').splitlines()))
    drawn: dict[Mutant, None] = {}
    while len(drawn) < count:
        file = rng.choices(files, weights)[0]
        drawn[rng.choice(mutants_of(file))] = None
    return list(drawn)


def place_of(mutant: Mutant) -> tuple[int, int] | None:
    """The line's number, from 1, and the column of a mutant's expression; None if it is gone."""
    path = ROOT / mutant.file
    if not path.exists():
        return None
    source = path.read_text(encoding='utf-8')
    lines = source.splitlines()
    for name, function in _functions(ast.parse(source)):
        if name != mutant.function:
            continue
        assert isinstance(function, ast.FunctionDef)
        for number in range(function.lineno, (function.end_lineno or 0) + 1):
            line = lines[number - 1]
            begin = len(line) - len(line.lstrip()) + mutant.column
            if line.strip() == mutant.line and line[begin:].startswith(mutant.before):
                return number, begin
    return None


class _Lines:
    """A pytest plugin: the lines of the spine that each test enters.

    Attributes:
      entered: tests by 'FILE:LINE'.
    """

    TOOL = 3  # a number that no debugger, coverage tool or profiler reserves

    def __init__(self):
        """Begins to listen."""
        self.entered: dict[str, list[str]] = defaultdict(list)
        self._test = ''
        places = [str(ROOT / 'bert_jax' / name) for name in SPINE]
        self._files = tuple(place + end for place in places for end in (os.sep, '.py'))
        monitoring = sys.monitoring
        monitoring.use_tool_id(self.TOOL, 'mutants')
        monitoring.register_callback(self.TOOL, monitoring.events.LINE, self._on_line)
        monitoring.set_events(self.TOOL, monitoring.events.LINE)

    def _on_line(self, code: Any, line: int) -> Any:
        if self._test and code.co_filename.startswith(self._files):
            file = os.path.relpath(code.co_filename, ROOT)
            self.entered[f'{file}:{line}'].append(self._test)
        return sys.monitoring.DISABLE  # until the next test

    def stop(self) -> None:
        """Stops to listen."""
        sys.monitoring.set_events(self.TOOL, sys.monitoring.events.NO_EVENTS)
        sys.monitoring.free_tool_id(self.TOOL)

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        """A test begins, with its fixtures."""
        self._test = nodeid
        sys.monitoring.restart_events()


def cover(output: Path, arguments: list[str]) -> int:
    """Runs the tests in this process and writes the tests of each line; pytest's exit status."""
    lines = _Lines()
    status = int(pytest.main(['-p', 'no:xdist', '-p', 'no:cacheprovider', *arguments], [lines]))
    lines.stop()
    tests = sorted({test for of_line in lines.entered.values() for test in of_line})
    number = {test: i for i, test in enumerate(tests)}
    entered = {
        line: sorted({number[test] for test in of_line})
        for line, of_line in sorted(lines.entered.items())}
    output.write_text(json.dumps({'tests': tests, 'lines': entered}))
    return status


class Tests(NamedTuple):
    """Tests that enter a line: those of the quick part, and the rest."""

    quick: list[str]
    rest: list[str]


def tests_of(place: str, covered: dict[str, Any], quick: set[str], known: set[str]) -> Tests:
    """The tests that enter a line, those that enter the fewest lines first.

    Args:
      place: FILE:LINE.
      covered: what `cover` wrote.
      quick: the tests of the quick part.
      known: all tests; others are not there any more.
    """
    sizes: dict[int, int] = defaultdict(int)
    for numbers in covered['lines'].values():
        for number in numbers:
            sizes[number] += 1
    numbers = sorted(covered['lines'].get(place, ()), key=lambda number: (sizes[number], number))
    tests = [covered['tests'][number] for number in numbers]
    of_quick = [test for test in tests if test in quick]
    others = [test for test in tests if test in known and test not in quick]
    return Tests(of_quick[:MOST_TESTS], others[:MOST_TESTS])


def _notice(tests: list[str]) -> bool | None:
    """Whether one of the tests fails; None if they take too long. They run in a fork.

    This process has imported the packages that tests do, which would take most of the time.
    """
    if not tests:
        return False
    child = os.fork()
    if not child:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        for name in list(sys.modules):
            if name.partition('.')[0] in ('bert_jax', 'tests'):
                del sys.modules[name]  # imported again, with the mistake
        options = ['-x', '-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', '--tb=no']
        os._exit(int(pytest.main([*options, *tests])))
    end = time.monotonic() + MOST_SECONDS
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status != 0
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _load_packages() -> None:
    """Imports what most tests do, without the package; no device is opened."""
    sys.dont_write_bytecode = True
    importlib.import_module('tests.conftest')  # sets the environment that jax reads
    for name in ('jax', 'flax.linen', 'optax', 'orbax.checkpoint', 'tokenizers', 'safetensors'):
        importlib.import_module(name)


def _collected(*options: str) -> set[str]:
    """The names of the tests that pytest finds."""
    command = [sys.executable, '-m', 'pytest', '--collect-only', '-q', '-o', 'addopts=', *options]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {line for line in process.stdout.splitlines() if '::' in line}


def run(mutants: list[Mutant], covered: dict[str, Any], output: Path) -> None:
    """Runs the tests of each mutant; writes what became of it, after each."""
    quick = _collected('--quick')
    known = _collected()
    _load_packages()
    ended: list[dict[str, Any]] = []
    for i, mutant in enumerate(mutants):
        started = time.monotonic()
        place = place_of(mutant)
        tests = Tests([], [])
        if place is None:
            result = 'gone'
        else:
            tests = tests_of(f'{mutant.file}:{place[0]}', covered, quick, known)
            result = _with_mistake(mutant, place, tests)
        ended.append({**mutant._asdict(), 'result': result, 'quick_tests': len(tests.quick),
                      'other_tests': len(tests.rest)})
        output.write_text(json.dumps(ended, indent=1) + '\n')
        print(f'{i + 1} of {len(mutants)}: {result}, {len(tests.quick)} and {len(tests.rest)} '
              f'tests, {time.monotonic() - started:.0f} s: {mutant.file} {mutant.function}: '
              f'{mutant.before} -> {mutant.after}', flush=True)
    counts: dict[str, int] = defaultdict(int)
    for entry in ended:
        counts[entry['result']] += 1
    print(dict(counts))


def _with_mistake(mutant: Mutant, place: tuple[int, int], tests: Tests) -> str:
    """What the tests say while the file has the mistake."""
    path = ROOT / mutant.file
    right = path.read_bytes()
    lines = right.decode('utf-8').splitlines(keepends=True)
    line = lines[place[0] - 1]
    end = place[1] + len(mutant.before)
    lines[place[0] - 1] = line[: place[1]] + mutant.after + line[end:]
    try:
        path.write_text(''.join(lines), encoding='utf-8')
        noticed = {'quick part': _notice(tests.quick)}
        if noticed['quick part'] is False:
            noticed['rest'] = _notice(tests.rest)
    finally:
        path.write_bytes(right)
    for name, is_noticed in noticed.items():
        if is_noticed:
            return f'killed by the {name}'
        if is_noticed is None:
            return f'the {name} takes too long'  # in an endless loop, or on a busy machine
    return 'survived' if tests.quick or tests.rest else 'no test'


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True)
    for name in ('list', 'cover', 'run'):
        command = commands.add_parser(name)
        command.add_argument('--output', type=Path, required=True)
        if name == 'list':
            command.add_argument('--count', type=int, default=120)
            command.add_argument('--seed', type=int, default=0)
        if name == 'run':
            command.add_argument('mutants', type=Path)
            command.add_argument('lines', type=Path)
    options, others = parser.parse_known_args()
    if options.command == 'cover':
        return cover(options.output, others)
    if others:
        parser.error(f'unknown arguments: {" ".join(others)}')
    if options.command == 'list':
        drawn = draw(options.count, options.seed)
        rows = [json.dumps(mutant._asdict()) for mutant in drawn]
        options.output.write_text('[\n' + ',\n'.join(rows) + '\n]\n')
        return 0
    mutants = [Mutant(**entry) for entry in json.loads(options.mutants.read_text())]
    run(mutants, json.loads(options.lines.read_text()), options.output)
    return 0


if __name__ == '__main__':
    sys.exit(main())
