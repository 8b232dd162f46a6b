"""What the site takes from the code: the table of config fields, and what each command says.

mkdocs calls the functions `on_...` for every page (mkdocs.yml, `hooks`). A page holds a line
`<!-- fields -->`, which becomes the tables of all fields, or `<!-- command: MODULE -->`, which
becomes the docstring of that module, as `--help` prints it.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # mkdocs may run where the package is not installed

from bert_jax.config.bert_config import OPTIONS, Range  # noqa: E402
from bert_jax.config.fields import FIELDS, SECTIONS, Field  # noqa: E402

_DECLARATIONS = ('bert_jax/config/fields.py', 'bert_jax/config/bert_config.py')
_SECTIONS = {
    '': 'Of the run',
    'model': 'model: what is trained',
    'data': 'data: what it is trained on',
    'train': 'train: steps, evaluation, saving',
    'optimizer': 'optimizer: how it is trained',
    'adapter': 'adapter: what is trained instead of all of it',
    'mesh': 'mesh: where it is computed',
    'classification': 'classification',
    'regression': 'regression',
    'conll': 'conll',
    'tagging': 'tagging',
    'squad': 'squad',
    'retrieval': 'retrieval',
    'reranking': 'reranking',
}
_KINDS = {
    'text': 'text',
    'path': 'a path',
    'duration': "steps, or `'10%'`, `'3 epochs'`, `'100000 examples'`",
    'decay': '`start`, `peak`, or when, as a duration',
    'trace': 'steps, such as `100..110`',
    'steps': 'steps, such as `(1234,)`',
    'elsewhere': 'checked where it is read',
}
# Defaults of the model's options where no checkpoint decides them; sizes have none.
_MODEL_DEFAULTS = {f'model.{option.name}': option.default for option in OPTIONS}
_BOOSTS = {'reference/fields': 2, 'log/': 0.5}
_COMMAND = re.compile(r'^<!-- command: (\S+) -->$', re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text of a page with its marked lines filled in."""
    if '<!-- fields -->' in markdown:
        markdown = markdown.replace('<!-- fields -->', fields_in_tables())
    return _COMMAND.sub(lambda found: what_a_command_says(found[1]), markdown)


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Puts the table of fields before other hits of the search, and the log behind them."""
    for beginning, boost in _BOOSTS.items():
        if page.file.src_uri.startswith(beginning):
            page.meta['search'] = {'boost': boost}
    return html


def what_a_command_says(module: str) -> str:
    """The docstring of a command's module, as a block of text."""
    path = ROOT / module.replace('.', '/')
    file = path / '__main__.py' if path.is_dir() else path.with_suffix('.py')
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding='utf-8')))
    return f'```text\n{docstring}\n```'


def fields_in_tables() -> str:
    """Markdown with a heading and a table for each section of the config."""
    comments = {}
    for file in _DECLARATIONS:
        comments |= comments_of((ROOT / file).read_text(encoding='utf-8'))
    rows: dict[str, list[str]] = {section: [] for section in _SECTIONS}
    for path, field in FIELDS.items():
        section = path.rpartition('.')[0]
        rows[section].append(_row(path, field, _comment_on(path, comments)))
    lines = []
    for section, title in _SECTIONS.items():
        lines += [f'## {title}', '', '| field | what it is | default | allowed | role |']
        lines += ['|---|---|---|---|---|', *rows[section], '']
    return '\n'.join(lines)


def _comment_on(path: str, comments: Mapping[str, str]) -> str:
    """The comment on a field; fields of the model and of tasks are declared without section."""
    section, _, name = path.rpartition('.')
    if path not in comments and section in ('model', *SECTIONS):
        return comments.get(name, '')
    return comments.get(path, '')


def _row(path: str, field: Field, comment: str) -> str:
    """The row of a field."""
    anchor = path.replace('.', '-').replace('_', '-')
    cells = [
        f'<a id="{anchor}"></a>`{path}`',
        _with_readers(comment, field),
        _default(path, field),
        _allowed(field.allowed),
        field.role,
    ]
    return '| ' + ' | '.join(cell.replace('|', '\\|') for cell in cells) + ' |'


def _default(path: str, field: Field) -> str:
    """The default, and the one of tasks other than pre-training where it differs."""
    if field.default is None:
        otherwise = _MODEL_DEFAULTS.get(path)
        if otherwise is None:
            return 'follows from others'
        return f"the checkpoint's, else `{otherwise!r}`"
    default = f'`{field.default!r}`'
    if field.downstream is None:
        return default
    return f'{default}; in tasks `{field.downstream!r}`'


def _allowed(allowed: Any) -> str:
    """The allowed values, in words."""
    if isinstance(allowed, Range):
        return str(allowed)
    if isinstance(allowed, tuple):
        return ', '.join(f'`{value!r}`' for value in allowed)
    return _KINDS[allowed]


def _with_readers(comment: str, field: Field) -> str:
    """The comment, with the tasks that read the field if not all do."""
    # Outside of backquotes a comment is plain text: its stars and brackets are no markup.
    parts = comment.split('`')
    parts[::2] = [re.sub(r'([<*_[])', r'\\\1', part) for part in parts[::2]]
    text = '`'.join(parts)
    if not field.read_by:
        return text
    readers = ', '.join(field.read_by).replace('_', '\\_')
    return f'{text} *(read by {readers})*'.strip()


def comments_of(code: str) -> dict[str, str]:
    """The comments of a file's dict entries and annotated fields, by key or name.

    A comment belongs to the entry in whose lines it stands and, if it fills the lines directly
    above, to the entry below.
    """
    comments, alone = _comment_lines(code)
    found = {}
    for name, first, last in _declared(ast.parse(code)):
        above = first - 1
        while above in alone:
            above -= 1
        lines = [*range(above + 1, first), *range(first, last + 1)]
        text = ' '.join(comments[line] for line in lines if line in comments)
        if text:
            found[name] = text
    return found


def _comment_lines(code: str) -> tuple[dict[int, str], set[int]]:
    """(The text of comments by line number, the lines that hold nothing else)."""
    comments = {}
    alone = set()
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            comments[line] = token.string.lstrip('# ')
            if token.line.strip() == token.string:
                alone.add(line)
    return comments, alone


def _declared(tree: ast.AST) -> list[tuple[str, int, int]]:
    """(Name, first line, last line) of each dict entry with a text as its key, and each field."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.append((node.target.id, node.lineno, node.end_lineno or node.lineno))
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found.append((key.value, key.lineno, value.end_lineno or key.lineno))
    return found
