"""Modules that config files of users may import, and that have moved: old names give the new ones.

`docs/stability.md` says until when.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# By their folder then and now; OLD=NEW where a module has another name, too.
_MOVED = {
    ('data', 'rows'): (
        'blocks chunks=pairs examples masking packed_examples packing pairs=sequences '
        'planned_pairs=pairs pretrain=text_rows recipe=pairs stateless store store_statistics '
        'stored_text=text_rows table windows'),
    ('rows', 'rows'): (
        'chunks=pairs planned_pairs=pairs pretrain=text_rows recipe=pairs stored_text=text_rows'),
    ('data', 'corpus'): (
        'code_points contamination corpus=sources digests document_blocks document_facts fasta '
        'near_duplicates python_docs records sentences sharing source store_building '
        'store_finishing store_parts text_batches text_facts text_formats tfds_source tokenize '
        'tokenize_plain unsplittable'),
    ('model', 'kernels'): (
        'attention_blocks attention_gpu attention_kernel attention_tiles attention_tpu dropout '
        'rotary'),
    ('tasks', 'answers'): 'entities',
    ('tasks', 'rows'): 'squad_reader squad_windows',
    ('tasks', 'tasks'): 'squad_answers=squad',  # its decoding of spans: answers.spans
    ('predict', 'predict'): 'commands=model',
}
_GONE = 'bert_jax.data'  # nothing is left in this folder


def new_names() -> dict[str, str]:
    """The full name of each module that has moved, by its old one."""
    names: dict[str, str] = {}
    for (old_folder, folder), modules in _MOVED.items():
        for module in modules.split():
            old, _, new = module.partition('=')
            names[f'bert_jax.{old_folder}.{old}'] = f'bert_jax.{folder}.{new or old}'
    return names


class _Finder(MetaPathFinder):
    """Finds modules under their old names, where there is none of such a name."""

    def __init__(self) -> None:
        self._new_names = new_names()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == _GONE:
            return ModuleSpec(fullname, _Moved(''), is_package=True)
        if fullname in self._new_names:
            return ModuleSpec(fullname, _Moved(self._new_names[fullname]))
        return None


class _Moved(Loader):
    """Gives the module of another name; '' for a package without modules of its own."""

    def __init__(self, new_name: str):
        self._new_name = new_name

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        if not self._new_name:
            return None
        from bert_jax.runtime.errors import tell_once

        tell_once(f'note: {spec.name} is {self._new_name} now: import that')
        module = importlib.import_module(self._new_name)
        self._own = (module.__spec__, module.__loader__)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leaves a module as it was imported under its new name."""
        if self._new_name:
            module.__spec__, module.__loader__ = self._own


def accept_old_names() -> None:
    """Lets modules that have moved be imported by their old names."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
