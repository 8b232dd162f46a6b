"""The package's layers: imports point down, few files import TensorFlow, files stay short."""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / 'bert_jax').rglob('*.py'))

TENSORFLOW_FILES = {
    'data/corpus.py', 'data/tokenize.py', 'data/records.py',
    'predict/export.py', 'runtime/process.py',
    'weights/tf1.py',
}
FLOORS = [
    {'runtime', 'config', 'train.sharding', 'text',
     'tasks.metrics', 'tasks.table', 'data.stateless'},
    {'data', 'model', 'heads', 'weights'},
    {'train', 'predict.engine'},
    {'tasks'},
    {'predict', 'config.validation', 'train.program', 'train.experiment'},
    {'__main__', 'main', 'evaluate', 'convert', 'predict.__main__', 'tools'},
]
# Packages of one floor that import each other only as given here: heads use the model, and weights
# use the models that they start.
BESIDE = {'data': (), 'model': (), 'heads': ('model',), 'weights': ('model', 'heads')}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT / 'bert_jax').with_suffix('').parts
    return '.'.join(part for part in parts if part != '__init__')


MODULES = {module_name(path) for path in FILES}


def imports(path: Path) -> set[str]:
    """Absolute names that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f'{path}: relative import'
            names |= {f'{node.module}.{alias.name}' for alias in node.names}
    return names


def ours(path: Path) -> set[str]:
    """Modules of this package that a file imports, as in FLOORS."""
    names = {name.removeprefix('bert_jax.') for name in imports(path)
             if name.startswith('bert_jax.')}
    return {name if name in MODULES else name.rpartition('.')[0] for name in names} - {''}


def room(module: str) -> str:
    """The top-level package that a module is in, or the top-level module itself."""
    return module.partition('.')[0]


def floor(module: str) -> int:
    for name in (module, room(module)):  # a module's own floor before its package's
        for number, modules in enumerate(FLOORS):
            if name in modules:
                return number
    raise AssertionError(f'{module} has no floor: add it to FLOORS')


@pytest.mark.parametrize('path', FILES[1:], ids=module_name)
def test_a_module_keeps_the_rules(path):
    module, others = module_name(path), ours(path)
    packages = {name.partition('.')[0] for name in imports(path)}
    above = {other for other in others if floor(other) > floor(module)}
    assert not above, 'imports point down the floors'
    if floor(module) == len(FLOORS) - 1:
        commands = {room(other) for other in others if floor(other) == len(FLOORS) - 1}
        assert commands <= {room(module)}, 'no command imports another'
    if room(module) in BESIDE:
        met = {room(other) for other in others} & BESIDE.keys()
        assert met <= {room(module), *BESIDE[room(module)]}, 'only as in BESIDE'
    if packages & {'tensorflow', 'tensorflow_text', 'tensorflow_datasets', 'keras'}:
        assert path.relative_to(ROOT / 'bert_jax').as_posix() in TENSORFLOW_FILES
    if 0 < floor(module) < 3:
        assert 'config' not in others and 'ml_collections' not in packages, 'it stops at tasks/'
    assert 'configs' not in packages
    # A file is as long as its subject, 800 lines at most.
    assert len(path.read_text(encoding='utf-8').splitlines()) <= 800


def test_no_cycles():
    graphlib.TopologicalSorter({module_name(path): ours(path) for path in FILES}).prepare()


def test_configs_import_only_the_config_module():
    for path in (ROOT / 'configs').glob('*.py'):
        assert {name.split('.')[0] for name in imports(path)} <= {'bert_jax', '__future__'}
        assert ours(path) == {'config'}, path
