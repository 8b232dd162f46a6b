"""The layers of the package: arrows point down, TensorFlow stays in its rooms, files stay short."""

import ast
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


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT / 'bert_jax').with_suffix('').parts
    return '.'.join(part for part in parts if part != '__init__')


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
    known = {module_name(p) for p in FILES}
    found = set()
    for name in imports(path):
        if name == 'bert_jax' or not name.startswith('bert_jax'):
            continue
        name = name.removeprefix('bert_jax.')
        found.add(name if name in known else name.rpartition('.')[0])
    return found - {''}


def floor(module: str) -> int:
    for name in (module, module.partition('.')[0]):  # a room's own floor, unless a module has one
        for number, modules in enumerate(FLOORS):
            if name in modules:
                return number
    raise AssertionError(f'{module} has no floor: add it to FLOORS')


@pytest.mark.parametrize('path', FILES, ids=module_name)
def test_arrows_point_down(path):
    module = module_name(path)
    if not module:
        return
    for other in ours(path):
        assert floor(other) <= floor(module), f'{module} imports {other}, which is above it'
        if floor(module) == len(FLOORS) - 1 and floor(other) == floor(module):
            assert other.partition('.')[0] == module.partition('.')[0], (
                f'command {module} imports command {other}'
            )
    assert not any(name.split('.')[0] == 'configs' for name in imports(path))


def test_data_and_model_do_not_meet():
    """Heads stand on the model, and weights may import the model that they start."""
    rooms = ('data', 'model', 'heads', 'weights')
    for path in FILES:
        module = module_name(path)
        room = module.partition('.')[0]
        if room in rooms:
            others = {name.partition('.')[0] for name in ours(path)} & set(rooms)
            above = {'heads': {'model'}, 'weights': {'model', 'heads'}}
            allowed = {room} | above.get(room, set())
            assert others <= allowed, f'{module} imports {others}'


def test_no_cycles():
    graph = {module_name(path): ours(path) for path in FILES}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, ' -> '.join((*trail, module))
        if module in done:
            return
        for other in graph.get(module, ()):
            visit(other, (*trail, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def test_tensorflow_stays_in_its_rooms():
    for path in FILES:
        relative = path.relative_to(ROOT / 'bert_jax').as_posix()
        loaded = {name.split('.')[0] for name in imports(path)}
        if loaded & {'tensorflow', 'tensorflow_text', 'tensorflow_datasets', 'keras'}:
            assert relative in TENSORFLOW_FILES, relative


def test_config_stops_at_the_tasks():
    for path in FILES:
        module = module_name(path)
        if module and 0 < floor(module) < 3:
            assert not ours(path) & {'config'}, module
            assert 'ml_collections' not in {n.split('.')[0] for n in imports(path)}, module


def test_configs_import_only_the_config_module():
    for path in (ROOT / 'configs').glob('*.py'):
        assert {name.split('.')[0] for name in imports(path)} <= {'bert_jax', '__future__'}
        assert ours(path) == {'config'}, path


@pytest.mark.parametrize('path', FILES, ids=module_name)
def test_files_stay_readable(path):
    """A file is as long as its subject, 800 lines at most."""
    assert len(path.read_text(encoding='utf-8').splitlines()) <= 800
