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
from typing import Any

from bert_jax.runtime.pool import process_pool

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
VERSION = 1  # part of the fingerprint: raise it when the cleaning rules change


def source_files() -> list[tuple[str, str, int]]:
    """All files to read: (name relative to its package's parent, path, size), in a fixed order."""
    roots = [('python', sysconfig.get_paths()['stdlib'])]
    for package in PACKAGES:
        # Only searches the path: nothing is imported, and earlier imports make no difference
        # (TensorFlow adds folders to its package when imported).
        spec = importlib.machinery.PathFinder.find_spec(package)
        for path in sorted((spec and spec.submodule_search_locations) or ()):
            roots.append((package, path))
    files = []
    for package, root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
            for name in sorted(names):
                if name.endswith('.py') and not _SKIPPED_FILES.fullmatch(name):
                    path = os.path.join(folder, name)
                    relative = os.path.join(package, os.path.relpath(path, root))
                    files.append((relative, path, os.stat(path).st_size))
    return files


def documents(files: Sequence[tuple[str, str, int]], num_processes: int) -> Iterator[str]:
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
        read = pool.map(file_paragraphs, [path for _, path, _ in files], chunksize=8)
        for paragraphs in itertools.chain(_topics(), read):
            kept = []
            for paragraph in paragraphs:
                if paragraph.lower() not in seen:
                    seen.add(paragraph.lower())
                    kept.append(paragraph)
            text = '\n'.join(kept)
            if len(text) >= 200:  # less is too little context for next sentence prediction
                yield text


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
    return [paragraph for text in _docstrings(tree) for paragraph in clean(text)]


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
_NOT_PROSE = re.compile(r'[^\w\s.,;:\'"()?!-]|_|\d')


def clean(text: str) -> list[str]:
    """Prose paragraphs of a docstring, one line each, without code, tables and markup."""
    lines = text.replace('\0', '').split('\n')  # a few docstrings hold a NUL by accident
    return [prose for paragraph in _paragraphs(lines) if (prose := _prose(paragraph))]


def _paragraphs(lines: Sequence[str]) -> Iterator[str]:
    """Joins wrapped lines; leaves out examples, fenced and literal blocks, tables and headings."""
    paragraph: list[str] = []
    previous = start = 0  # indentation of the line before, and of the paragraph's first line
    dropped_above = -1  # lines indented deeper belong to a block that is left out
    fenced = example = False
    for number, line in enumerate(lines):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text.startswith(('```', '~~~')):
            fenced, text = not fenced, ''
        elif fenced:
            continue
        if not text:
            example = False
        elif _UNDERLINE.fullmatch(text):
            text = ''
            if len(paragraph) == 1:
                paragraph = []  # it was the heading of this underline
        elif example or 0 <= dropped_above < indent:
            continue
        else:
            dropped_above = -1
            above = lines[number - 1].strip() if number else ''
            if _CODE.match(text):
                example = text.startswith(('>>>', 'In [', '$'))
                text = ''
            elif directive := _DIRECTIVE.match(text):
                if directive[1] not in _PROSE_DIRECTIVES:
                    dropped_above = indent
                text = ''
            # What looks like a heading may be the end of a wrapped sentence.
            elif _HEADER.fullmatch(text) and not (above[-1:].isalpha() and line.endswith(':')):
                text = ''
        if paragraph and (not text or indent < previous or _ITEM.match(text)):
            yield ' '.join(paragraph)
            paragraph = []
        if text:
            if not paragraph:
                start = indent
            paragraph.append(text)
            previous = indent
            if text.endswith('::'):
                dropped_above = start
    if paragraph:
        yield ' '.join(paragraph)


def _prose(paragraph: str) -> str:
    """The paragraph without inline markup, or '' where it is not prose."""
    text = _FIELD.sub('', paragraph)
    for pattern, replacement in _INLINE:
        text = pattern.sub(replacement, text)
    text = text.replace('::', ':').strip()
    size, odd = len(text), len(_NOT_PROSE.findall(text))
    return '' if size < 30 or text.count(' ') < 4 or odd > 0.06 * size else text
