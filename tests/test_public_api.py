"""What `import bert_jax` gives: its names, their signatures, and what it loads."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bert_jax
from bert_jax.api.modules import BertModule
from bert_jax.api.tokenizer import PackedTexts, Tokenizer
from tests.conftest import ROOT, check_golden

# Objects that the public ones have as attributes.
REACHED = {
    'Bert.module': BertModule, 'Bert.tokenizer': Tokenizer, 'Bert.tokenizer.pack()': PackedTexts}


def shortened(line):
    """A line without the modules of types, which differ between versions of jax and Python."""
    line = re.sub(r"<class '([^']+)'>", r'\1', line)
    return re.sub(r'(?<![\w\'])(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_]\w*)', '', line)


def described(name, thing):
    """A line for a function; for a class its own and one for each public method or attribute."""
    if not inspect.isclass(thing):
        return [name + shortened(str(inspect.signature(thing)))]
    if issubclass(thing, Exception):
        return [f'{name}: {thing.__mro__[1].__name__}']
    lines = [f'{name}: class']
    for member, value in sorted(vars(thing).items()):
        if member == 'setup' or (member.startswith('_') and member != '__call__'):
            continue
        if callable(value):
            lines.append(f'{name}.{member}' + shortened(str(inspect.signature(value))))
        elif isinstance(value, property) or hasattr(value, 'func'):
            lines.append(f'{name}.{member}')
    fields = inspect.get_annotations(thing)
    for field in sorted(fields):
        if not field.startswith('_') and field not in ('parent', 'name', 'scope'):
            lines.append(f'{name}.{field}: ' + shortened(str(fields[field])))
    return lines


def test_signatures_are_those_that_programs_rely_on():
    """A line that changes or goes breaks a caller: the version says so (docs/library.md)."""
    lines = []
    for name in sorted(bert_jax.__all__):
        lines += described(name, getattr(bert_jax, name))
    for name, thing in REACHED.items():
        lines += described(name, thing)
    check_golden('public_api.txt', lines)


def test_the_page_names_what_is_public():
    page = (ROOT / 'docs' / 'library.md').read_text()
    for name in bert_jax.__all__:
        assert f'`{name}' in page, name


def test_the_type_checker_sees_the_same_names():
    source = Path(bert_jax.__file__).read_text()
    imported = [line.split()[-1] for line in source.splitlines()
                if line.startswith('    from bert_jax.')]
    assert sorted(imported) == sorted(bert_jax.__all__)
    assert (Path(bert_jax.__file__).parent / 'py.typed').exists()


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'from_pretraind'"):
        _ = bert_jax.from_pretraind
    assert set(bert_jax.__all__) <= set(dir(bert_jax))


def test_importing_loads_neither_jax_nor_tensorflow():
    code = (
        'import sys, bert_jax\n'
        "print(sorted({'jax', 'flax', 'numpy', 'tensorflow'} & set(sys.modules)))\n"
        'bert_jax.from_config\n'
        "print('tensorflow' in sys.modules)\n")
    process = subprocess.run(
        [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.splitlines() == ['[]', 'False']
