"""The site: links and anchors resolve, every page is in the navigation, commands exist as shown."""

import ast
import dataclasses
import importlib.util
import re
import shlex
import sys
import unicodedata
from pathlib import Path
from unittest import mock

import pytest
import yaml

from bert_jax.config.command_line import config_file, parse_command
from bert_jax.config.fields import FIELDS
from bert_jax.config.phases import PHASE_FIELDS
from bert_jax.tasks.opening import TASKS
from tests.conftest import ROOT

DOCS = ROOT / 'docs'
PAGES = sorted(DOCS.rglob('*.md'))
# The log holds commands as they were typed on its dates.
KEPT_UP = [ROOT / 'README.md', *(page for page in PAGES if page.parent.name != 'log')]
COMMAND = re.compile(r'\b(?:python -m (bert_jax[\w.]*)|launch/\w+\.sh .*--tool=(\w+))')
# Stand-ins for a file of the reader's own.
OWN = ('...', 'FILE', 'mine.py', 'hindi.py')


def load_hooks():
    spec = importlib.util.spec_from_file_location('site_hooks', DOCS / 'hooks.py')
    hooks = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = hooks
    spec.loader.exec_module(hooks)
    return hooks


HOOKS = load_hooks()


def content(page: Path) -> str:
    """A page's Markdown, with what the site takes from the code."""
    return HOOKS.on_page_markdown(page.read_text(encoding='utf-8'))


def prose(text: str) -> str:
    """The text without its blocks of code."""
    return re.sub(r'^ *```.*?^ *```', '', text, flags=re.DOTALL | re.MULTILINE)


def anchor(heading: str) -> str:
    """The anchor that the site gives a heading (python-markdown's `toc`)."""
    plain = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', heading).replace('`', '')
    ascii_only = unicodedata.normalize('NFKD', plain).encode('ascii', 'ignore').decode()
    kept = re.sub(r'[^\w\s-]', '', ascii_only).strip().lower()
    return re.sub(r'[-\s]+', '-', kept)


def anchors(page: Path) -> set[str]:
    text = prose(content(page))
    headings = re.findall(r'^#+ (.+)$', text, flags=re.MULTILINE)
    return {anchor(heading) for heading in headings} | set(re.findall(r'<a id="([^"]+)"', text))


def links(page: Path) -> list[str]:
    """Targets of the links and pictures of a page that do not lead to other sites."""
    targets = re.findall(r'\]\(([^)\s]+)\)', prose(page.read_text(encoding='utf-8')))
    return [target for target in targets if '://' not in target]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize('page', [ROOT / 'README.md', *PAGES], ids=named)
def test_links_and_their_anchors_resolve(page):
    for target in links(page):
        path, _, place = target.partition('#')
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if page.is_relative_to(DOCS):
            assert file.is_relative_to(DOCS), f'{target} is not on the site'
        if place:
            assert place in anchors(file), target


def pages_of(entries) -> list[str]:
    """The files that a list of mkdocs.yml's navigation names."""
    files = []
    for entry in entries:
        (value,) = entry.values()
        files += pages_of(value) if isinstance(value, list) else [value]
    return files


def test_every_page_is_in_the_navigation_once():
    settings = yaml.safe_load((ROOT / 'mkdocs.yml').read_text(encoding='utf-8'))
    assert sorted(pages_of(settings['nav'])) == sorted(
        str(page.relative_to(DOCS)) for page in PAGES)


def test_the_readme_is_a_first_page():
    assert len((ROOT / 'README.md').read_text(encoding='utf-8').splitlines()) <= 80


def strings_of_the_code() -> str:
    """The package's source, in which a message that goes on in the next line is in one piece."""
    sources = [path.read_text(encoding='utf-8') for path in (ROOT / 'bert_jax').rglob('*.py')]
    return re.sub(r'([\'"])\n +f?[\'"]', '', '\n'.join(sources))


def test_a_message_in_troubleshooting_is_one_of_the_code():
    code = strings_of_the_code()
    page = (DOCS / 'troubleshooting.md').read_text(encoding='utf-8')
    messages = re.findall(r'^> (.+)$', page, flags=re.MULTILINE)
    assert len(messages) > 30
    for message in messages:
        for words in message.split('…'):
            assert words.strip() in code, message


ENDS = ('Diverged', 'FaultyChip', 'SaveFailed', 'Stopped', 'Unavailable')  # but for bad input


def fixed_words(node: ast.expr) -> list[str]:
    """The parts of a message that are the same whatever it tells of."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return [part.value for part in parts if isinstance(part, ast.Constant)]


def messages_that_end_a_command() -> list[list[str]]:
    """The fixed words of each: those of the table of errors, and those that exceptions bring."""
    found = []
    for path in (ROOT / 'bert_jax').rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in ENDS and node.args:
                found.append(fixed_words(node.args[0]))
            if node.func.id == 'ErrorRule':
                (line,) = [word.value.value for word in node.keywords if word.arg == 'line']
                found.append(re.split(r'\{\w+\}', line))
    return [words for words in found if ''.join(words).strip()]


def test_a_message_that_ends_a_command_is_in_troubleshooting():
    page = (DOCS / 'troubleshooting.md').read_text(encoding='utf-8')
    messages = messages_that_end_a_command()
    assert len(messages) > 20
    quoted = re.findall(r'^> (.+)$', page, flags=re.MULTILINE)
    said = {words.strip(' :().') for message in quoted for words in message.split('…')} - {''}
    for words in messages:
        known = [part for part in said if len(part) > 12 or part in words]
        assert any(part in ''.join(words) for part in known), words


def test_every_field_has_a_row_with_its_role():
    rows = {}
    for line in content(DOCS / 'reference/fields.md').splitlines():
        if line.startswith('| <a id='):
            cells = [cell.strip() for cell in re.split(r'(?<!\\)\|', line)[1:-1]]
            rows[cells[0].split('`')[1]] = cells
    assert {path: cells[4] for path, cells in rows.items()} == {
        path: field.role for path, field in FIELDS.items()}
    assert rows['data.held_out'][2] == '`0.01`; in tasks `0.1`'
    assert rows['model.hidden_act'][2] == "the checkpoint's, else `'gelu_tanh'`"
    assert rows['data.short_seq_prob'][3] == 'a number from 0 to 1'
    assert rows['mesh.tensor'][1] == 'Splits heads, intermediate and vocabulary.'
    assert rows['optimizer.warmup'][1] == ''  # the comment above it is on another field


def test_comments_belong_to_the_entry_beside_or_below_them():
    code = "A = {\n    # Two\n    # lines.\n    'a': 1,  # beside\n    # Lost.\n\n    'b': 2,\n}\n"
    assert HOOKS.comments_of(code) == {'a': 'Two lines. beside'}


def test_a_page_of_commands_has_their_docstrings():
    said = HOOKS.on_page_markdown('before\n\n<!-- command: bert_jax.tools.sweep -->\n\nafter')
    assert said.startswith('before\n\n```text\nRuns points of a grid or a search')
    assert said.endswith('\n```\n\nafter')


@dataclasses.dataclass
class Shown:
    """A command of a page: its page, module and arguments."""

    page: Path
    module: str
    arguments: list[str]

    def __str__(self):
        return f'{named(self.page)}: {self.module} {" ".join(self.arguments)}'[:120]


def code_lines(text: str) -> list[str]:
    """The lines of a page's code, with continued lines joined."""
    fenced = re.findall(r'^ *```[^\n`]*\n(.*?)^ *```', text, flags=re.DOTALL | re.MULTILINE)
    indented = re.findall(r'^    (?! ).*(?:\n    .*)*', prose(text), flags=re.MULTILINE)
    code = '\n'.join([*fenced, *indented])
    return re.sub(r'\\\n\s*', ' ', code).splitlines()


def commands_of(page: Path) -> list[Shown]:
    commands = []
    for line in code_lines(content(page)):
        found = COMMAND.search(line)
        if not found:
            continue
        module = found[1] or f'bert_jax.tools.{found[2]}'
        rest = line[found.end():]
        if found[2] or line.strip().startswith('launch/'):
            rest = rest.partition(' -- ')[2]
        try:
            words = shlex.split(rest, comments=True)
        except ValueError:  # quotes that go on in the next line
            continue
        commands.append(Shown(page, module, until_the_command_ends(words)))
    return commands


def until_the_command_ends(words: list[str]) -> list[str]:
    arguments = []
    for word in words:
        if word in ('|', '&&', ';', '<', '>'):
            break
        arguments.append(word)
    return arguments


COMMANDS = [command for page in KEPT_UP for command in commands_of(page)]


def source_of(module: str) -> Path:
    """The file of a module that is run with `python -m`."""
    path = ROOT / module.replace('.', '/')
    return path / '__main__.py' if path.is_dir() else path.with_suffix('.py')


def flags_of(module: str) -> set[str]:
    """The flags that the file of a command declares: for argparse, for absl, or in a table."""
    flags = {'help'}
    for node in ast.walk(ast.parse(source_of(module).read_text(encoding='utf-8'))):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.args[0]
        is_flag = re.search(r'add_argument|DEFINE_|_NumberFlag', ast.unparse(node.func))
        if is_flag and isinstance(name, ast.Constant) and isinstance(name.value, str):
            flags.add(name.value.removeprefix('--'))
    return flags


def test_pages_show_commands():
    assert len(COMMANDS) > 60
    assert {command.module for command in COMMANDS} >= {
        'bert_jax.main', 'bert_jax.evaluate', 'bert_jax.predict', 'bert_jax.tools.preflight'}


@pytest.mark.parametrize('command', COMMANDS, ids=str)
def test_a_command_of_a_page_has_these_flags_and_fields(command):
    assert source_of(command.module).is_file()
    flags = flags_of(command.module)
    settings = []
    for word in command.arguments:
        if word == '--':  # the rest is another program's
            break
        if word.startswith('--config.') or word.startswith('--config='):
            settings.append(word)
        elif word.startswith('--'):
            assert word.removeprefix('--').partition('=')[0] in flags, word
    check_settings(settings)


def check_settings(settings: list[str]) -> None:
    """The config exists and has the fields that are set, with values of their types."""
    fields = [word for word in settings if word.startswith('--config.') and '=...' not in word]
    for word in fields:
        path = word.removeprefix('--config.').partition('=')[0]
        phase_field = re.sub(r'^phases\[\d+\]\.', '', path)
        assert path in FIELDS or phase_field in PHASE_FIELDS, word
    for word in settings:
        config = word.removeprefix('--config=')
        if config == word or any(own in config for own in OWN):
            continue
        file = config_file(config)
        path, _, argument = file.partition(':')
        assert Path(path).is_file(), word
        if Path(path).parent.name != 'sweeps' and not argument.isupper():  # NAME, TASK, ...
            with mock.patch.dict(TASKS):  # a config file may replace a task
                parse_command(['shown', f'--config={file}', *fields], '')


@pytest.mark.parametrize('page', KEPT_UP, ids=named)
def test_configs_fields_and_modules_in_the_text_exist(page):
    text = content(page)
    for config in re.findall(r'\bconfigs/([\w/]+\.py)', text):
        assert config == 'X.py' or (ROOT / 'configs' / config).is_file(), config
    for path in re.findall(r'--config\.([a-z][\w.]*\w)', text):
        assert path in FIELDS or path in PHASE_FIELDS, path
    for module in re.findall(r'python -m (bert_jax[\w.]*\w)', text):
        assert source_of(module).is_file(), module
