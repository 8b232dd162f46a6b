"""Small mistakes put into the package, one at a time: the share that the tests notice.

    python -m tests.mutants list --output=mutants.json [--count=120] [--seed=0]
    python -m tests.mutants cover mutants.json --output=entered.json [PYTEST ARGUMENTS]
    python -m tests.mutants run mutants.json entered.json --output=killed.json [--seconds=15]

`list` draws mutants of the spine: by file in proportion to its lines, in functions, one changed
operator, constant or condition each. `cover` runs tests once, in this process, and adds to its file
which of them enter the mutants' lines, and their seconds. It watches nothing else, so it costs what
the tests do; it can be run in pieces, as with `--quick` first and with some slow folders then.
(It needs Python 3.12, and does not see what other processes enter.) `run` takes each mutant in
turn: it changes the file, runs the tests that enter its line until one fails, and puts the file
back. So it needs a checkout of its own. Of the quick part, whose tests come first, and of the rest
it takes the cheapest tests of that many seconds. A test that fails without the mistake, too, is no
proof, and the result says so.

A mutant is found again by its function and the text of its line: a list made before a change
can be run after it, and what is not found any more is counted apart.
"""

import argparse
import ast
import gc
import importlib
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest

from tests.programs import python
from tests.quick import is_quick
from tests.test_imports import ROOT, SPINE
from tests.warm_server import warm_up

_MOST_SECONDS = 180  # of the CPU, until tests that do not end are killed
_LONGEST = 1200  # likewise, of the clock
_KEPT = ('tests.programs', 'tests.warm_python')  # with the process that programs are forks of
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


def name_of(mutant: Mutant) -> str:
    """The mutant's line, wherever in its file it is."""
    return f'{mutant.file} {mutant.function}: {mutant.line}'


def _cpu_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class _Entered:
    """A pytest plugin: the tests that enter the lines of mutants, and their seconds.

    Attributes:
      tests: by name, CPU `seconds` with its fixtures, whether it is `quick`, whether it `passes`.
      lines: the names of tests that entered, by `name_of` a mutant.
    """

    TOOL = 3  # a number that no debugger, coverage tool or profiler reserves

    def __init__(self, mutants: list[Mutant]):
        """Begins to listen."""
        self.tests: dict[str, dict[str, Any]] = {}
        self.lines: dict[str, list[str]] = defaultdict(list)
        self._names: dict[str, dict[int, str]] = defaultdict(dict)  # by file, then line
        for mutant in mutants:
            place = place_of(mutant)
            if place:
                self._names[str(ROOT / mutant.file)][place[0]] = name_of(mutant)
        self._test = ''
        self._began = 0.0
        self._heard: set[CodeType] = set()  # functions that this test entered
        events = sys.monitoring.events
        sys.monitoring.use_tool_id(self.TOOL, 'mutants')
        sys.monitoring.register_callback(self.TOOL, events.PY_START, self._on_start)
        sys.monitoring.register_callback(self.TOOL, events.LINE, self._on_line)
        sys.monitoring.set_events(self.TOOL, events.PY_START)

    def _on_start(self, code: CodeType, _: int) -> Any:
        """A function is called for the first time: its lines are watched if it has a mutant's."""
        names = self._names.get(code.co_filename)
        if names and not names.keys().isdisjoint(line for _, _, line in code.co_lines()):
            self._listen(code)
        return sys.monitoring.DISABLE  # for good

    def _listen(self, code: CodeType) -> None:
        sys.monitoring.set_local_events(self.TOOL, code, sys.monitoring.events.LINE)

    def _on_line(self, code: CodeType, line: int) -> Any:
        if not self._test:
            return None  # something is imported
        name = self._names[code.co_filename].get(line)
        if name:
            self._heard.add(code)
            if self._test not in self.lines[name][-1:]:
                self.lines[name].append(self._test)
        return sys.monitoring.DISABLE  # until the next test

    def stop(self) -> None:
        """Stops to listen."""
        for event in (sys.monitoring.events.PY_START, sys.monitoring.events.LINE):
            sys.monitoring.register_callback(self.TOOL, event, None)
        sys.monitoring.free_tool_id(self.TOOL)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Notes which tests are of the quick part."""
        for item in items:
            self.tests[item.nodeid] = {'quick': is_quick(item), 'passes': True}

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        """A test begins, with its fixtures: what the last one entered is watched again."""
        self._test = nodeid
        self._began = _cpu_seconds()
        heard, self._heard = self._heard, set()
        for code in heard:
            sys.monitoring.set_local_events(self.TOOL, code, sys.monitoring.events.NO_EVENTS)
            self._listen(code)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A part of a test has ended."""
        self.tests[report.nodeid]['passes'] &= report.passed

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        """A test has ended, with its fixtures."""
        self.tests[nodeid]['seconds'] = round(_cpu_seconds() - self._began, 3)


def cover(mutants: list[Mutant], output: Path, arguments: list[str]) -> int:
    """Runs tests in this process and writes which enter mutants' lines; pytest's exit status.

    What the file says of other tests stays.
    """
    entered = _Entered(mutants)
    status = int(pytest.main(['-p', 'no:xdist', '-p', 'no:cacheprovider', *arguments], [entered]))
    entered.stop()
    before = json.loads(output.read_text()) if output.exists() else {'tests': {}, 'lines': {}}
    ran = {name: test for name, test in entered.tests.items() if 'seconds' in test}
    lines = {}
    for name in sorted(before['lines'].keys() | entered.lines.keys()):
        others = [test for test in before['lines'].get(name, []) if test not in ran]
        lines[name] = others + entered.lines.get(name, [])
    output.write_text(json.dumps({'tests': before['tests'] | ran, 'lines': lines}, indent=0))
    return status


def tests_of(mutant: Mutant, covered: dict[str, Any], seconds: float) -> list[list[str]]:
    """The tests to run, by part and file: first those of the quick part.

    The file comes first that enters the fewest mutants' lines.

    Args:
      mutant: whose line they enter.
      covered: what `cover` wrote.
      seconds: of all tests of the quick part that are taken, and of all others; the cheapest.
    """
    known = covered['tests']
    entered = Counter(_file_of(test) for tests in covered['lines'].values() for test in tests)
    tests = [test for test in covered['lines'].get(name_of(mutant), []) if known[test]['passes']]
    by_file: list[list[str]] = []
    for quick in (True, False):
        of_part = [test for test in tests if known[test]['quick'] == quick]
        left = seconds
        of_file: dict[str, list[str]] = defaultdict(list)  # which share fixtures
        for test in sorted(of_part, key=lambda test: known[test]['seconds']):
            if left > 0:
                of_file[_file_of(test)].append(test)
            left -= known[test]['seconds']
        by_file += [of_file[file] for file in sorted(of_file, key=lambda file: entered[file])]
    return by_file


def _file_of(test: str) -> str:
    return test.partition('::')[0]


class _Failure:
    """A pytest plugin that writes the name of a test that fails."""

    def __init__(self, file: int):
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A part of a test has ended."""
        if report.failed:
            os.write(self._file, report.nodeid.encode() + b'\n')


def _first_failure(by_file: list[list[str]]) -> str:
    """The first of the tests that fails, in a fork; '' if none does.

    Raises:
      TimeoutError: they do not end.
    """
    with tempfile.TemporaryFile('w+') as failures:
        child = os.fork()
        if not child:
            os._exit(_run_tests(by_file, failures.fileno()))
        end = time.monotonic() + _LONGEST
        ended = status = 0
        while not ended and time.monotonic() < end:
            time.sleep(0.05)
            ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if not ended or os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            raise TimeoutError
        failures.seek(0)
        return failures.readline().strip() or (by_file[0][0] if status else '')  # it crashed


def _run_tests(by_file: list[list[str]], failures: int) -> int:
    """Imports one file of tests after another and runs its tests, until one fails.

    This process has imported the packages that tests need, which would take most of the time, but
    what it has of the package itself is imported again.
    """
    os.setsid()
    # At the first limit comes SIGXCPU, at the second SIGKILL.
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_SECONDS, _MOST_SECONDS + 5))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    for name in list(sys.modules):
        if name.partition('.')[0] in ('bert_jax', 'tests') and name not in _KEPT:
            del sys.modules[name]
    options = ['-x', '-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', '--tb=no']
    for tests in by_file:
        if pytest.main([*options, *tests], [_Failure(failures)]):
            os.write(failures, tests[0].encode() + b'\n')  # the second line, unless all failed
            return 1
    return 0


def _load_packages() -> None:
    """Imports what tests do, without the package; no device is opened."""
    importlib.import_module('tests.conftest')  # sets the environment that jax reads
    sys.dont_write_bytecode = True  # of mistakes
    warm_up()
    python()  # starts what programs are forks of
    gc.collect()
    gc.freeze()


def run(
    mutants: list[Mutant], covered: dict[str, Any], output: Path, seconds: float,
) -> None:
    """Runs the tests of each mutant; writes what became of it, after each."""
    _load_packages()
    ended: list[dict[str, Any]] = []
    for i, mutant in enumerate(mutants):
        started = time.monotonic()
        by_file = tests_of(mutant, covered, seconds)
        tests = sum(map(len, by_file))
        failed = ''
        place = place_of(mutant)
        if place is None:
            result = 'gone'
        elif not by_file:
            result = 'no test'
        else:
            try:
                failed = _with_mistake(mutant, place, by_file)
                result = _judged(failed, covered)
            except TimeoutError:
                result = 'the tests do not end'
        ended.append({**mutant._asdict(), 'result': result, 'test': failed, 'tests': tests})
        output.write_text(json.dumps(ended, indent=1) + '\n')
        print(f'{i + 1} of {len(mutants)}: {result}, {tests} tests, '
              f'{time.monotonic() - started:.0f} s: {mutant.file} {mutant.function}: '
              f'{mutant.before} -> {mutant.after}', failed, flush=True)
    print(dict(Counter(entry['result'] for entry in ended)))


def _judged(failed: str, covered: dict[str, Any]) -> str:
    """What a test that fails with a mistake says of it."""
    if not failed:
        return 'survived'
    if _first_failure([[failed]]):
        return 'a test fails without it, too'
    part = 'quick part' if covered['tests'][failed]['quick'] else 'rest'
    return f'killed by the {part}'


def _with_mistake(mutant: Mutant, place: tuple[int, int], by_file: list[list[str]]) -> str:
    """The first test that fails while the file has the mistake, or ''."""
    path = ROOT / mutant.file
    right = path.read_bytes()
    times = path.stat()
    lines = right.decode('utf-8').splitlines(keepends=True)
    line = lines[place[0] - 1]
    end = place[1] + len(mutant.before)
    lines[place[0] - 1] = line[: place[1]] + mutant.after + line[end:]
    try:
        path.write_text(''.join(lines), encoding='utf-8')
        return _first_failure(by_file)
    finally:
        path.write_bytes(right)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # compiled as it is now


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True)
    for name in ('list', 'cover', 'run'):
        command = commands.add_parser(name)
        command.add_argument('--output', type=Path, required=True)
        if name != 'list':
            command.add_argument('mutants', type=Path)
        if name == 'list':
            command.add_argument('--count', type=int, default=120)
            command.add_argument('--seed', type=int, default=0)
        if name == 'run':
            command.add_argument('entered', type=Path)
            command.add_argument('--seconds', type=float, default=15)
    options, others = parser.parse_known_args()
    if options.command == 'cover':
        return cover(_read(options.mutants), options.output, others)
    if others:
        parser.error(f'unknown arguments: {" ".join(others)}')
    if options.command == 'list':
        drawn = draw(options.count, options.seed)
        rows = [json.dumps(mutant._asdict()) for mutant in drawn]
        options.output.write_text('[\n' + ',\n'.join(rows) + '\n]\n')
        return 0
    entered = json.loads(options.entered.read_text())
    run(_read(options.mutants), entered, options.output, options.seconds)
    return 0


def _read(file: Path) -> list[Mutant]:
    """The mutants of a file that `list` or `run` has written."""
    return [
        Mutant(*(entry[field] for field in Mutant._fields))
        for entry in json.loads(file.read_text())]


if __name__ == '__main__':
    sys.exit(main())
