"""The package's layers: imports point down, and `--help` loads little."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / 'bert_jax'
FILES = sorted(PACKAGE.rglob('*.py'))

# Folders, and modules beside them, from the ground up: each imports itself and those above it in
# this list, and no other. No command imports another.
LAYERS = [
    'runtime',
    'config',
    'sharding',
    'text',
    'data',
    'model',
    'heads',
    'weights',
    'inference',
    'train',
    'tasks',
    'validation',
    'run_setup',
    'scoring',
    'predict',
    'api',
    'tools',
]
COMMANDS = ['__main__', 'main', 'evaluate', 'convert']
# The config object stops here: functions of these folders take keyword arguments.
WITHOUT_CONFIG_OBJECT = ['runtime', 'sharding', 'text', 'data', 'model', 'heads', 'weights',
                         'inference']
TENSORFLOW_FILES = [
    'data/records.py',
    'data/tfds_source.py',
    'data/tokenize.py',
    'predict/export.py',
    'runtime/packages.py',
    'weights/tf1.py', 'weights/tf1_index.py',
]
TENSORFLOW = {'tensorflow', 'tensorflow_text', 'tensorflow_datasets', 'keras'}


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix('').parts[0]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix('').parts
    return '.'.join(part for part in parts if part != '__init__')


MODULES = {module_of(path) for path in FILES}


def imported_names(path: Path) -> set[str]:
    """Absolute names that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'{path}: relative import'
            names |= {f'{node.module}.{alias.name}' for alias in node.names}
    return names


def imported_modules(path: Path) -> set[str]:
    """Modules of the package that a file imports."""
    names = imported_names(path)
    return {module for module in MODULES if module in names or any(
        name.rpartition('.')[0] == module and name not in MODULES for name in names)}


def imported_layers(path: Path) -> set[str]:
    """Folders and modules of the package that a file imports."""
    layers = set()
    for name in imported_names(path):
        parts = name.split('.')
        if parts[0] == 'bert_jax' and len(parts) > 1:
            layers.add(parts[1])
    return layers


@pytest.mark.parametrize('path', FILES[1:], ids=name_of)
def test_imports_point_down(path):
    layer = layer_of(path)
    below = LAYERS if layer in COMMANDS else LAYERS[:LAYERS.index(layer)]
    assert imported_layers(path) <= {layer, *below}


def test_no_cycles():
    graph = {module_of(path): imported_modules(path) for path in FILES[1:]}
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize('path', FILES[1:], ids=name_of)
def test_tensorflow_and_the_config_object_stay_in_their_places(path):
    packages = {name.partition('.')[0] for name in imported_names(path)}
    if packages & TENSORFLOW:
        assert name_of(path) in TENSORFLOW_FILES
    if layer_of(path) in WITHOUT_CONFIG_OBJECT:
        assert 'ml_collections' not in packages
    assert 'configs' not in packages


# What a config that brings a task or a head of its own may import, beside `config`.
OWN_TASK_LAYERS = {'data', 'model', 'heads', 'tasks', 'predict'}
OWN_TASK_PACKAGES = {'dataclasses', 'functools', 'math', 'jax', 'flax', 'numpy'}


def brings_own_task(path: Path) -> bool:
    """Whether a config adds a task to `tasks.opening`."""
    return 'bert_jax.tasks.opening' in {name.rpartition('.')[0] for name in imported_names(path)}


def test_configs_import_only_the_config_module_or_what_a_task_needs():
    for path in (ROOT / 'configs').glob('*.py'):
        layers = {'config'}
        packages = {'bert_jax', '__future__'}
        if brings_own_task(path):
            layers |= OWN_TASK_LAYERS
            packages |= OWN_TASK_PACKAGES
        assert {name.partition('.')[0] for name in imported_names(path)} <= packages, path
        assert 'config' in imported_layers(path) <= layers, path


@pytest.mark.parametrize('arguments', [('--help',), ('--no_such_flag',), ('--config=missing.py',)])
def test_help_and_wrong_flags_load_neither_jax_nor_tensorflow(arguments):
    code = (
        'import sys\n'
        'from bert_jax.main import main\n'
        'try:\n'
        f'    main({["main", *arguments]!r})\n'
        'except SystemExit:\n'
        '    pass\n'
        "print('loaded', sorted({'jax', 'flax', 'tensorflow'} & set(sys.modules)))\n")
    process = subprocess.run(
        [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[-1] == 'loaded []'
