"""The text that comes with every Python: its documentation, as prose to learn from.

Docstrings of modules, classes and functions are found with `ast`, so nothing is imported or run,
in the standard library and in a fixed list of packages (what this project installs; one that is
missing is just absent). A document is one file's docstrings in order. This module imports little,
so that worker processes start quickly.
"""

import ast
import gc
import importlib.machinery
import inspect
import itertools
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bert_jax.corpus.pool import process_pool

PACKAGES = (
    'jax', 'flax', 'optax', 'orbax', 'chex', 'numpy', 'scipy', 'ml_dtypes', 'opt_einsum',
    'tensorflow', 'tensorflow_text', 'tensorflow_datasets', 'keras', 'tensorboard',
    'ml_collections', 'absl', 'etils', 'treescope', 'tensorstore', 'sentencepiece', 'safetensors',
    'matplotlib', 'mpl_toolkits', 'PIL', 'h5py', 'grpc', 'google', 'rich', 'pyparsing', 'dateutil',
    'fontTools', 'contourpy', 'humanize', 'markdown', 'werkzeug', 'requests', 'urllib3', 'psutil',
    'wrapt', 'simple_parsing', 'tqdm', 'yaml', 'fsspec', 'setuptools', 'pip',
)
# Tests explain nothing; the others repeat documentation found elsewhere.
_SKIPPED_FOLDERS = frozenset({
    'test', 'tests', '__pycache__', 'site-packages', 'dist-packages', 'idlelib', 'lib2to3',
    'ensurepip', 'pydoc_data', '_api', '_tf_keras', '_vendor', 'vendored', 'generated',
})
_SKIPPED_FILES = re.compile(r'(test_.*|.*_test|.*_pb2|.*_pb2_grpc|gen_.*|.*_gen|.*_gen_.*)\.py')
_MIN_DOCUMENT = 200  # characters; less is too little context for next sentence prediction
VERSION = 1  # part of the fingerprint: raise it when the cleaning rules change


class SourceFile(NamedTuple):
    """A Python file: its name relative to its package's parent, its path, its size in bytes."""

    name: str
    path: str
    size: int


def source_files() -> list[SourceFile]:
    """All files to read, in a fixed order."""
    files = []
    for package, root in _package_folders():
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
            for name in sorted(names):
                if name.endswith('.py') and not _SKIPPED_FILES.fullmatch(name):
                    path = os.path.join(folder, name)
                    relative = os.path.join(package, os.path.relpath(path, root))
                    files.append(SourceFile(relative, path, os.stat(path).st_size))
    return files


def _package_folders() -> Iterator[tuple[str, str]]:
    """(name, folder) of the standard library and of each package that is installed."""
    yield 'python', sysconfig.get_paths()['stdlib']
    for package in PACKAGES:
        # Only searches the path: nothing is imported, and earlier imports make no difference
        # (TensorFlow adds folders to its package when imported).
        spec = importlib.machinery.PathFinder.find_spec(package)
        if spec is not None:
            for folder in sorted(spec.submodule_search_locations or ()):
                yield package, folder


def documents(files: Sequence[SourceFile], num_processes: int) -> Iterator[str]:
    """One document per file, paragraphs separated by newlines; every paragraph occurs only once.

    The topics of the language reference come first. Much documentation is copied from function to
    function and from file to file. Only the first occurrence of a paragraph is kept, so that
    held-out documents share none with the others.

    Args:
      files: as from `source_files`.
      num_processes: that parse them.
    """
    seen: set[str] = set()
    with process_pool(num_processes) as pool:
        read = pool.map(file_paragraphs, [file.path for file in files], chunksize=8)
        for paragraphs in itertools.chain(_topics(), read):
            text = '\n'.join(_unseen(paragraphs, seen))
            if len(text) >= _MIN_DOCUMENT:
                yield text


def _unseen(paragraphs: Sequence[str], seen: set[str]) -> list[str]:
    """The paragraphs that have not been seen before, in any case; adds them to `seen`."""
    kept = []
    for paragraph in paragraphs:
        lowered = paragraph.lower()
        if lowered not in seen:
            seen.add(lowered)
            kept.append(paragraph)
    return kept


def _topics() -> Iterator[list[str]]:
    """The language reference as `help('topic')` shows it."""
    try:
        from pydoc_data import topics  # a module that holds one dictionary
    except ImportError:  # some systems package it separately
        return
    for text in topics.topics.values():
        yield clean(inspect.cleandoc(text))


def file_paragraphs(path: str) -> list[str]:
    """Cleaned paragraphs of all docstrings of one Python file; none if it cannot be parsed."""
    gc.disable()  # syntax trees hold no cycles, and the search for some takes a third of the time
    try:
        with open(path, 'rb') as file, warnings.catch_warnings():
            warnings.simplefilter('ignore')  # invalid escapes in other people's code
            tree = ast.parse(file.read())
    except (SyntaxError, ValueError, RecursionError, OSError):
        return []
    finally:
        gc.enable()
    paragraphs = []
    for text in _docstrings(tree):
        paragraphs += clean(text)
    return paragraphs


_WITH_BODY = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.If, ast.Try)


def _docstrings(node: Any) -> Iterator[str]:
    """Docstrings of a module, class or function and of what it defines, in order."""
    if not isinstance(node, (ast.If, ast.Try)):
        yield ast.get_docstring(node) or ''
    for child in [*node.body, *getattr(node, 'orelse', ())]:
        if isinstance(child, _WITH_BODY):
            yield from _docstrings(child)


_UNDERLINE = re.compile(r'([=\-~^"\'*+#.`_:])\1{2,}|[=\- +|:]*[=\-+|]{3}[=\- +|:]*')
_HEADER = re.compile(r'[A-Z][A-Za-z]*( [A-Za-z]+)?:|#+ .*|@\w+.*|[\w.*, \[\]]+ : .*|%\(\w+\)s')
_DIRECTIVE = re.compile(r'\.\. *([\w:+-]*?)::|\.\. ')
_PROSE_DIRECTIVES = frozenset({
    'note', 'warning', 'tip', 'important', 'admonition', 'seealso', 'caution', 'hint', 'attention',
})
_ITEM = re.compile(r'[-*•+] +|\(?[0-9a-z]{1,2}[.)] +|(:\w+[^:]*:) +|`*\*{0,2}\w+`*( \([^)]*\))?: ')
_CODE = re.compile(r'>>> |\.\.\. |In \[|\$ |import |from \w+ import |@|def |class \w+[(:]')
_FIELD = re.compile(r'^(:\w+[^:]*:|[-*•+]|\(?[0-9]{1,2}[.)]) +')
_INLINE = (
    (re.compile(r':[\w:+-]+:`~?([^`<]+?)(?: *<[^`>]*>)?`'), r'\1'),  # :class:`~a.B`
    (re.compile(r'`([^`<]+?) *<[^`>]*>`_{1,2}'), r'\1'),  # `text <url>`_
    (re.compile(r'!?\[([^\]]+)\]\([^)]*\)'), r'\1'),  # [text](url)
    (re.compile(r' ?\[[^\]\s]{1,8}\]_'), ''),  # [1]_
    (re.compile(r'`+([^`]*)`+_?'), r'\1'),
    (re.compile(r'(?<!\w)\*{1,2}([^*\s][^*]*?)\*{1,2}(?!\w)'), r'\1'),
    (re.compile(r'\s+'), ' '),
)
_MIN_CHARACTERS = 30  # of a paragraph
_MIN_SPACES = 4
_MAX_NOT_PROSE = 0.06  # share of its characters
_NOT_PROSE = re.compile(r'[^\w\s.,;:\'"()?!-]|_|\d')


def clean(text: str) -> list[str]:
    """Prose paragraphs of a docstring, one line each, without code, tables and markup."""
    lines = text.replace('\0', '').split('\n')  # a few docstrings hold a NUL by accident
    prose = [_prose(paragraph) for paragraph in _paragraphs(lines)]
    return [paragraph for paragraph in prose if paragraph]


def _paragraphs(lines: Sequence[str]) -> Iterator[str]:
    """Joins wrapped lines; leaves out examples, fenced and literal blocks, tables and headings."""
    reader = _ParagraphReader()
    above = ''
    for line in lines:
        yield from reader.add(line, above)
        above = line.strip()
    yield from reader.end()


class _ParagraphReader:
    """Collects the lines of a paragraph until another line ends it."""

    def __init__(self) -> None:
        self._paragraph: list[str] = []
        self._first_indent = 0  # of the paragraph's first line
        self._last_indent = 0  # of its last line so far
        self._dropped_above = -1  # lines indented deeper belong to a block that is left out
        self._is_fenced = False
        self._is_example = False

    def add(self, line: str, above: str) -> Iterator[str]:
        """Takes a line, given the text above it; yields the paragraph that it ends, if any."""
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text.startswith(('```', '~~~')):
            self._is_fenced = not self._is_fenced
            text = ''
        elif self._is_fenced:
            return
        if not text:
            self._is_example = False
        elif _UNDERLINE.fullmatch(text):
            if len(self._paragraph) == 1:
                self._paragraph = []  # it was the heading of this underline
            text = ''
        elif self._is_example or 0 <= self._dropped_above < indent:
            return
        else:
            self._dropped_above = -1
            if self._begins_block(text, indent) or _is_heading(line, above):
                text = ''
        if not text or indent < self._last_indent or _ITEM.match(text):
            yield from self.end()
        if text:
            self._append(text, indent)

    def _begins_block(self, text: str, indent: int) -> bool:
        """Whether a line is code or a directive; then the block below it may be left out."""
        if _CODE.match(text):
            self._is_example = text.startswith(('>>>', 'In [', '$'))
            return True
        directive = _DIRECTIVE.match(text)
        if directive is None:
            return False
        if directive[1] not in _PROSE_DIRECTIVES:
            self._dropped_above = indent
        return True

    def _append(self, text: str, indent: int) -> None:
        if not self._paragraph:
            self._first_indent = indent
        self._paragraph.append(text)
        self._last_indent = indent
        if text.endswith('::'):
            self._dropped_above = self._first_indent

    def end(self) -> Iterator[str]:
        """Ends the paragraph; yields it if it has a line."""
        if self._paragraph:
            yield ' '.join(self._paragraph)
            self._paragraph = []


def _is_heading(line: str, above: str) -> bool:
    """Whether a line is a heading without an underline."""
    if not _HEADER.fullmatch(line.strip()):
        return False
    # What looks like a heading may be the end of a wrapped sentence.
    goes_on = above[-1:].isalpha() and line.endswith(':')
    return not goes_on


def _prose(paragraph: str) -> str:
    """The paragraph without inline markup, or '' where it is not prose."""
    text = _FIELD.sub('', paragraph)
    for pattern, replacement in _INLINE:
        text = pattern.sub(replacement, text)
    text = text.replace('::', ':').strip()
    if len(text) < _MIN_CHARACTERS or text.count(' ') < _MIN_SPACES:
        return ''
    if len(_NOT_PROSE.findall(text)) > _MAX_NOT_PROSE * len(text):
        return ''
    return text
