"""One spine and three doors: who imports whom, and `--help` loads little."""

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.moved import new_names
from tests.warm_server import OWN

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / 'bert_jax'
FILES = sorted(PACKAGE.rglob('*.py'))

# Folders, and modules beside them, from the ground up: each imports itself and those above it in
# this list, and no other, so that it can be read without the rest.
SPINE = [
    'runtime',
    'config',
    'sharding',
    'text',
    'kernels',
    'model',
    'heads',
    'weights',
    'rows',
    'step',
    'run',
    'watch',
    'train',
    'answers',
    'predict',
    'tasks',
    'completion',
    'validation',
]
# They hang at the doors (a finished store, a run folder, a model's weights), and import the spine.
GUESTS = ['corpus', 'foreign']
# They call guests and hand on what these return. Each imports those above it in this list.
DOORS = ['run_setup', 'scoring', 'loading', 'api', 'tools']
COMMANDS = ['__main__', 'main', 'evaluate', 'convert', 'predict/__main__']
# The config object stops here: functions of these folders take keyword arguments.
WITHOUT_CONFIG_OBJECT = [
    'runtime', 'sharding', 'text', 'kernels', 'model', 'heads', 'weights', 'rows', 'step', 'run',
    'watch', 'answers', 'foreign']
TENSORFLOW_FILES = [
    'corpus/records.py',
    'corpus/tfds_source.py',
    'corpus/tokenize_tensorflow.py',
    'foreign/tf1.py', 'foreign/tf1_index.py',
    'predict/export.py',
    'rows/tfds.py',
    'runtime/packages.py',
]
TENSORFLOW = {'tensorflow', 'tensorflow_text', 'tensorflow_datasets', 'keras'}


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def layer_of(path: Path) -> str:
    name = path.relative_to(PACKAGE).with_suffix('')
    return name.as_posix() if name.as_posix() in COMMANDS else name.parts[0]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix('').parts
    return '.'.join(part for part in parts if part != '__init__')


PATHS = {module_of(path): path for path in FILES}
MODULES = set(PATHS)


@functools.cache
def imported_names(path: Path) -> frozenset[str]:
    """Absolute names that a file imports, anywhere in it, or has as strings."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Constant) and node.value in MODULES - {'bert_jax'}:
            names.add(node.value)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'{path}: relative import'
            names |= {f'{node.module}.{alias.name}' for alias in node.names}
    return frozenset(names)


def imported_modules(path: Path) -> set[str]:
    """Modules of the package that a file imports."""
    names = imported_names(path)
    objects = {name.rpartition('.')[0] for name in names - MODULES}
    return MODULES & (names | objects)


def imported_layers(path: Path) -> set[str]:
    """Folders and modules of the package that a file imports."""
    layers = set()
    for name in imported_names(path):
        parts = name.split('.')
        if parts[0] == 'bert_jax' and len(parts) > 1:
            layers.add(parts[1])
    return layers


def allowed_layers(layer: str) -> set[str]:
    """The folders and modules that those of a layer may import."""
    if layer in SPINE:
        return {*SPINE[:SPINE.index(layer) + 1]}
    if layer in GUESTS:
        return {*SPINE, layer}
    if layer in DOORS:
        return {*SPINE, *GUESTS, *DOORS[:DOORS.index(layer) + 1]}
    return {*SPINE, *GUESTS, *DOORS, layer}


@pytest.mark.parametrize('path', FILES, ids=name_of)
def test_imports_point_up_in_the_list_of_folders(path):
    layer = layer_of(path)
    if layer in ('__init__', '__main__', 'moved'):  # names of the library, of commands, old ones
        return
    assert imported_layers(path) <= allowed_layers(layer)


def reached_from(path: Path) -> dict[str, list[str]]:
    """The modules that a file reaches by its imports and theirs, each with the way to it."""
    ways = {module_of(path): [module_of(path)]}
    waiting = [module_of(path)]
    while waiting:
        here = waiting.pop()
        for module in imported_modules(PATHS[here]) - ways.keys() - {'bert_jax'}:
            ways[module] = [*ways[here], module]
            waiting.append(module)
    return ways


@pytest.mark.parametrize('folder', SPINE)
def test_the_spine_reaches_no_guest(folder):
    files = [path for path in FILES if layer_of(path) == folder]
    assert files
    for path in files:
        for module, way in reached_from(path).items():
            assert layer_of(PATHS[module]) in SPINE, ' -> '.join(way)


def test_only_an_old_name_is_looked_up_in_the_library():
    users = {name_of(path) for path in FILES if 'bert_jax' in imported_names(path)}
    assert users == {'predict/__init__.py'}


def test_old_names_of_modules_are_of_modules_that_exist():
    moved = new_names()
    assert moved.keys().isdisjoint(MODULES)
    assert set(moved.values()) <= MODULES


@pytest.mark.parametrize('module', OWN)
def test_forks_of_the_tests_know_when_they_began(module):
    """`STARTED` would be the time at which their server began."""
    assert 'bert_jax.runtime.process' not in reached_from(PATHS[module])


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
OWN_TASK_LAYERS = {'rows', 'kernels', 'model', 'heads', 'answers', 'tasks', 'predict'}
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
