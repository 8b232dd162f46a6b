"""Adapters as peft has them: `adapter_config.json` and `adapter_model.safetensors`, without a base.

A folder that is written here also has `bert_jax.json`, which says what peft's files do not: the
head, its labels, and how predictions are made.

    I: inputs, M: matrices of a kernel, or those that have an adapter, R: rank, O: outputs
"""

import contextlib
import dataclasses
import math
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config.adapters import AdapterOptions
from bert_jax.foreign.families import FAMILIES, class_of, family_to_write, shared_layers
from bert_jax.foreign.families.family import Architecture, Family
from bert_jax.foreign.safetensors_files import open_file, write_file
from bert_jax.heads import HEADS, part_of
from bert_jax.heads.classification import CLASSIFIER
from bert_jax.heads.tensors import POOLER, Tensor
from bert_jax.run.layout import is_run, is_step
from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.files import Path, as_path, exists, read_fields
from bert_jax.runtime.new_folder import new_folder, write_json
from bert_jax.runtime.schema import NUMBER, TEXT, TRUTH, ListOf, MapOf, Range, count
from bert_jax.weights import parameters
from bert_jax.weights.adapters import (
    AdaptedKernel,
    AdapterWeights,
    adapted_kernels,
    column_lengths,
    first_magnitudes,
)
from bert_jax.weights.inference_settings import INFERENCE, read_inference, without_head
from bert_jax.weights.parameters import Weights

ADAPTER_CONFIG = 'adapter_config.json'
_TENSORS = 'adapter_model.safetensors'
_PICKLED = 'adapter_model.bin'
_OURS = 'bert_jax.json'
_PREFIX = 'base_model.model.'
_LEAVES = ('lora_A.weight', 'lora_B.weight', 'lora_magnitude_vector')
_OUTPUTS = 'classifier/bias'
# Matrices in front of the layers, beside which no adapter is trained here.
_BEFORE_LAYERS = re.compile(r'bert/embeddings/(\w+)_embeddings|bert/embeddings_project/kernel')
_TASK_TYPES = {
    'classification': 'SEQ_CLS', 'regression': 'SEQ_CLS', 'multi_label': 'SEQ_CLS',
    'token_classification': 'TOKEN_CLS', 'question_answering': 'QUESTION_ANS',
    '': 'FEATURE_EXTRACTION'}
_REMEDY = 'fix it, or download the file again'
_MERGE = 'merge the adapter into its model with peft (merge_and_unload), and save that'
_RANK = count(2**16)
_SCHEMA: Mapping[str, Any] = {
    'peft_type': TEXT,
    'task_type': TEXT,
    'base_model_name_or_path': TEXT,
    'revision': TEXT,
    'r': _RANK,
    'lora_alpha': Range(0, 1e6, without=(0,)),
    'lora_dropout': Range(0, 1),
    'use_rslora': TRUTH,
    'use_dora': TRUTH,
    'rank_pattern': MapOf(_RANK),
    'alpha_pattern': MapOf(NUMBER),
}
_OF_OURS: Mapping[str, Any] = {'head': TEXT, 'labels': ListOf(TEXT)}
# Other fields that change nothing here: how the adapter was chosen, drawn or saved.
_NOT_READ = (
    'auto_mapping', 'peft_version', 'inference_mode', 'target_modules', 'exclude_modules',
    'modules_to_save', 'layers_pattern', 'layers_to_transform', 'megatron_core', 'eva_config',
    'runtime_config', 'qalora_group_size', 'ensure_weight_tying')
# With others, what the adapter was trained on is not the base.
_DRAWN = (True, False, 'gaussian', 'orthogonal', 'eva')


class _Place(NamedTuple):
    """Where the files have the adapters of a kernel.

    Attributes:
      kernel: with its adapters.
      modules: of peft: one for each matrix that has an adapter, or one for all of the kernel.
    """

    kernel: AdaptedKernel
    modules: tuple[str, ...]


def write_peft(folder: Path, weights: Weights) -> list[str]:
    """Writes a folder that `PeftModel.from_pretrained(base, folder)` loads.

    Args:
      folder: to write; or hf:ORG/NAME.
      weights: with an adapter.

    Returns:
      Notes for the user, a line each.

    Raises:
      InputError: there is no adapter, or peft has none of its kind.
    """
    adapter = weights.adapter
    if adapter is None:
        raise InputError(f'{weights.source} has no adapter beside its kernels: --to huggingface '
                         'writes all of it')
    if not adapter.options.is_low_rank:
        raise InputError(f"{weights.source} has an adapter of the kind 'bitfit' (its biases are "
                         'trained), which peft does not have: --to huggingface writes all of it')
    family = family_to_write(weights).in_memory  # where peft looks for modules
    architecture = class_of(family, weights.head, weights.params)
    if architecture is None:
        raise InputError(f'{weights.source} has {HEADS[weights.head].title()}, which no class of '
                         f'{family.name} models has: use --to bert_jax')
    tensors: dict[str, np.ndarray] = {}
    wide: dict[str, int] = {}  # modules that are several matrices, with their number
    targets: list[str] = []
    for place in _places(weights, adapter.options, family, architecture):
        targets += place.modules
        tensors |= _to_files(place, weights.params, adapter)
        if len(place.modules) < len(place.kernel.adapted):
            wide[place.modules[0]] = len(place.kernel.adapted)
    head = {name: x for name, x in weights.params.items() if part_of(name) in architecture.parts}
    of_head = parameters.from_params(
        lambda tensor: family.form_of(tensor, architecture), head, weights.model)
    tensors |= {_PREFIX + name: x for name, x in of_head.items()}
    config = _config(weights, adapter, targets, wide)
    config['modules_to_save'] = sorted({_module_of_head(name, family) for name in of_head})
    if not weights.head:  # the encoder's class has no prefix
        prefix = _PREFIX + family.prefix
        tensors = {name.replace(prefix, _PREFIX, 1): x for name, x in tensors.items()}
        config['target_modules'] = [name.removeprefix(family.prefix) for name in targets]
        for field in ('rank_pattern', 'alpha_pattern'):
            config[field] = {
                name.removeprefix(family.prefix): x for name, x in config[field].items()}
    with new_folder(folder) as beside:
        write_file(beside / _TENSORS, tensors)
        write_json(beside / ADAPTER_CONFIG, config)
        write_json(beside / _OURS, {
            'head': weights.head, 'labels': list(weights.labels),
            INFERENCE: dict(weights.inference)})
    return _notes_of_base(adapter.base, family.class_name(architecture))


def _notes_of_base(base: str, class_name: str) -> list[str]:
    """What a user needs to add the adapter to its base, which may be '', with a class."""
    notes = [f'peft adds it to {base or "the model that it was trained on"}, as {class_name} '
             'loads it']
    if base and (is_run(as_path(base)) or is_step(as_path(base))):
        notes.append(
            'transformers does not read a run of this project: for a folder that it reads, python '
            f'-m bert_jax.convert {shlex.quote(base)} DIR --to huggingface')
    return notes


def _module_of_head(name: str, family: Family) -> str:
    """The module in the class of a head's tensor: 'bert.pooler' or 'classifier'."""
    parts = name.split('.')
    num = 2 if name.startswith(family.prefix) else 1
    return '.'.join(parts[:num])


def _config(
    weights: Weights, adapter: AdapterWeights, targets: Sequence[str], wide: Mapping[str, int]
) -> dict[str, Any]:
    """The fields of adapter_config.json but for those of the head."""
    options = adapter.options
    base, revision = adapter.base, None
    if base.startswith('hf:'):
        base, _, named = base.removeprefix('hf:').partition('@')
        revision = named or None
    alphas = {}
    for name, number in wide.items():  # so that the scale is that of one matrix
        factor = math.sqrt(number) if options.kind == 'rslora' else number
        alphas[name] = _whole(options.alpha * factor)
    return {
        'peft_type': 'LORA',
        'task_type': _TASK_TYPES.get(weights.head),
        'base_model_name_or_path': base,
        'revision': revision,
        'inference_mode': True,
        'r': options.rank,
        'lora_alpha': _whole(options.alpha),
        'lora_dropout': options.dropout,
        'use_rslora': options.kind == 'rslora',
        'use_dora': options.kind == 'dora',
        'target_modules': list(targets),
        'rank_pattern': {name: options.rank * number for name, number in wide.items()},
        'alpha_pattern': alphas,
        'bias': 'none',
        'fan_in_fan_out': False,
        'init_lora_weights': True,
    }


def _whole(number: float) -> float:
    """A number, as an int if it is whole, which peft's fields are for."""
    return int(number) if number == int(number) else number


def _places(
    weights: Weights, options: AdapterOptions, family: Family, architecture: Architecture
) -> Iterator[_Place]:
    """Where files of a class have each adapter of a model."""
    for kernel in adapted_kernels(parameters.tensors(weights.model), options):
        form = family.form_of(kernel.kernel, architecture)
        assert form is not None, kernel.name
        modules = tuple(name.removesuffix('.weight') for name in form.names)
        if len(modules) > 1:
            modules = tuple(modules[i] for i in kernel.adapted)
        yield _Place(kernel, modules)


def _to_files(
    place: _Place, params: Mapping[str, np.ndarray], adapter: AdapterWeights
) -> dict[str, np.ndarray]:
    """The tensors of a kernel's adapters.

    Where peft has one for several matrices, its rank is that of all of them together, and its B has
    zeros where a matrix would read what is of another.

    Args:
      place: where they are in the files.
      params: of the model.
      adapter: of the model.
    """
    kernel = place.kernel
    num = len(kernel.adapted)
    rank = adapter.options.rank
    a_IxMxR = adapter.params[f'{kernel.name}/adapter/a'].reshape(-1, num, rank)
    b_RxMxO = adapter.params[f'{kernel.name}/adapter/b'].reshape(rank, num, -1)
    magnitude_MxO = None
    if adapter.options.kind == 'dora':
        magnitude_MxO = adapter.params[f'{kernel.name}/adapter/magnitude'].reshape(num, -1)
    files: dict[str, np.ndarray] = {}
    if len(place.modules) == num:
        for i, module in enumerate(place.modules):
            length_O = None if magnitude_MxO is None else magnitude_MxO[i]
            files |= _module_to_files(module, a_IxMxR[:, i], b_RxMxO[:, i], length_O)
        return files
    num_matrices = len(kernel.targets)
    b_MxRxMxO = np.zeros((num, rank, num_matrices, b_RxMxO.shape[2]), np.float32)
    for i, matrix in enumerate(kernel.adapted):
        b_MxRxMxO[i, :, matrix] = b_RxMxO[:, i]
    length_O = None
    if magnitude_MxO is not None:
        whole = params[kernel.kernel.name].reshape(len(a_IxMxR), num_matrices, -1)
        lengths_MxO = column_lengths(whole)
        lengths_MxO[list(kernel.adapted)] = magnitude_MxO
        length_O = lengths_MxO.reshape(-1)
    return _module_to_files(
        place.modules[0], a_IxMxR.reshape(len(a_IxMxR), -1), b_MxRxMxO.reshape(num * rank, -1),
        length_O)


def _module_to_files(
    module: str, a_IxR: np.ndarray, b_RxO: np.ndarray, length_O: np.ndarray | None
) -> dict[str, np.ndarray]:
    """The tensors of the adapter of one of peft's modules."""
    tensors = {'lora_A.weight': a_IxR.T, 'lora_B.weight': b_RxO.T}
    if length_O is not None:
        tensors['lora_magnitude_vector'] = length_O
    return {f'{_PREFIX}{module}.{leaf}': np.ascontiguousarray(x, np.float32)
            for leaf, x in tensors.items()}


def base_of(folder: Path) -> str:
    """What the adapter in a folder is added to, as `load_weights` takes it.

    Raises:
      InputError: it does not say.
    """
    file = folder / ADAPTER_CONFIG
    named = _base_in(read_fields(file, _SCHEMA, _REMEDY))
    if not named:
        raise InputError(f'{file} does not name the model that it is added to: add '
                         'base_model_name_or_path, or use it with predict --model BASE --adapter')
    return named


def _base_in(config: Mapping[str, Any]) -> str:
    """The base that adapter_config.json names: a path, or hf:ORG/NAME[@REVISION]; '' for none."""
    named = config.get('base_model_name_or_path') or ''
    if not named or exists(as_path(named)):
        return str(named)
    revision = config.get('revision')
    return f'hf:{named}' + (f'@{revision}' if revision else '')


def is_peft(names: Collection[str]) -> bool:
    """Whether a folder with these files holds an adapter of peft alone."""
    has_model = any(name.startswith('model') and 'safetensors' in name for name in names)
    return ADAPTER_CONFIG in names and not has_model


def read_peft(folder: Path, base: Weights) -> Weights:
    """The model of a folder of peft: `base` with another head, and the adapter beside it.

    If the folder has adapters of embeddings, too, all of them are in the parameters.

    Args:
      folder: written by `save_pretrained` of a `PeftModel`, or by `write_peft`.
      base: what the adapter is added to.

    Raises:
      InputError: something is missing, damaged, or of a kind that there is not here, or the adapter
        is of another model.
    """
    base = base.merged
    stored, family = _open_folder(folder, base)
    ours: dict[str, Any] = {}
    if exists(folder / _OURS):
        ours = read_fields(folder / _OURS, _OF_OURS, _REMEDY)
    head = ours.get('head')
    if head is None:
        head = _head_of(stored, base.head)
    parameters.check_head(head, folder / _OURS)
    if head == base.head:
        architecture = class_of(family, head, base.params)
    else:
        architecture = next((each for each in family.architectures if head in each.heads), None)
    if architecture is None:
        raise InputError(f'{folder}: no class of {family.name} models has '
                         f'{HEADS[head].title()}')
    adapter = _read_adapter(stored, base, family, architecture)
    params = _read_head(stored, base, family, architecture, head)
    embeddings = _adapted_embeddings(stored, base, family, architecture, head)
    if stored.arrays:
        name = min(stored.arrays, key=lambda name: ('.lora_' not in name, name))
        raise InputError(f'{folder / _TENSORS}: {name} is of nothing that can be read of a model '
                         f'with {HEADS[head].title()}: adapters of the layers and the pooler can '
                         f'be, and parameters of the head{_remedy(stored)}')
    head = parameters.find_head(
        params, base.model, head, f'{stored.file} is of {HEADS[head].title()}')
    labels = ours.get('labels')
    if labels is None and head == base.head and len(base.labels) == len(params.get(_OUTPUTS, ())):
        labels = base.labels
    of_base = base.inference if head == base.head else without_head(base.inference)
    inference = read_inference(ours.get(INFERENCE), f'{folder / _OURS}: {INFERENCE}')
    result = dataclasses.replace(
        base, params=params | embeddings, head=head,
        labels=parameters.read_labels(labels, head, params, folder / _OURS),
        source=f'adapter {folder} of {base.source}',
        inference={**of_base, **inference}, step_dir=None, unused=(), adapter=adapter)
    if not embeddings:
        return result
    tell_once(f'note: the adapter of {folder} is in the weights now, as it is of embeddings, too')
    return result.merged


class _Stored(NamedTuple):
    """The content of a folder.

    Attributes:
      arrays: by the names in the class; what has been read is removed.
      config: of adapter_config.json.
      file: the path of that.
      added: what the names of modules begin with here, and not in the files.
    """

    arrays: dict[str, np.ndarray]
    config: Mapping[str, Any]
    file: Path
    added: str = ''

    def scale(self, module: str, rank: int) -> float:
        """The factor of the product of a module's matrices."""
        alpha = self._of(module, 'alpha_pattern', self.alpha)
        return alpha / (math.sqrt(rank) if self.config.get('use_rslora') else rank)

    def rank(self, module: str) -> int:
        """The rank of a module's matrices."""
        return int(self._of(module, 'rank_pattern', self.usual_rank))

    @property
    def alpha(self) -> float:
        """Of modules without another; peft's default where the file has none."""
        return float(self.config.get('lora_alpha') or 8)

    @property
    def usual_rank(self) -> int:
        """Of modules without another; peft's default where the file has none."""
        return int(self.config.get('r') or 8)

    def _of(self, module: str, field: str, default: Any) -> Any:
        """What a field of patterns says of a module: the ends of names, as regular expressions."""
        module = module.removeprefix(self.added)
        for pattern, value in (self.config.get(field) or {}).items():
            try:
                is_meant = re.fullmatch(rf'(.*\.)?({pattern})', module) is not None
            except re.error as error:
                raise InputError(f'{self.file}: {field} has {pattern!r:.100}, which is no regular '
                                 f'expression ({error}): {_REMEDY}') from None
            if is_meant:
                return value
        return default


def _open_folder(folder: Path, base: Weights) -> tuple[_Stored, Family]:
    """(The content of a folder, the family whose modules it names); `base` as for `read_peft`.

    Raises:
      InputError: it cannot be read, or is of another model.
    """
    file = folder / ADAPTER_CONFIG
    config = read_fields(file, _SCHEMA, _REMEDY)
    _check_readable(config, file)
    if exists(folder / _PICKLED) and not exists(folder / _TENSORS):
        raise InputError(f'{folder / _PICKLED} is not read, as a pickle can run any program: load '
                         'it with peft where you trust it, and save it anew with '
                         'save_pretrained(FOLDER), which writes safetensors')
    with contextlib.ExitStack() as stack:
        opened = open_file(folder / _TENSORS, stack)
        arrays = {name.removeprefix(_PREFIX): x.read() for name, x in opened.items()}
    parameters.check_finite(arrays, folder / _TENSORS)
    family = _family_of(arrays, base, folder / _TENSORS)
    if any(name.startswith(family.prefix) for name in arrays):
        return _Stored(arrays, config, file), family
    whole_names = {
        family.prefix + name if name.startswith(family.beginnings) else name: x
        for name, x in arrays.items()}
    return _Stored(whole_names, config, file, added=family.prefix), family


def _check_readable(config: Mapping[str, Any], file: Path) -> None:
    """Raises InputError if a field says that the adapter is more than low-rank products."""
    kind = config.get('peft_type')
    if kind != 'LORA':
        raise InputError(f'{file}: peft_type={kind!r} cannot be read: LORA can')
    drawn = config.get('init_lora_weights', True)
    if drawn not in _DRAWN:
        raise InputError(f'{file}: init_lora_weights={drawn!r} cannot be read: it changed the '
                         'model that the adapter is added to; save it with '
                         'path_initial_model_for_weight_conversion')
    for name, value in config.items():
        is_known = name in (*_SCHEMA, *_NOT_READ, 'init_lora_weights')
        if not is_known and value and (name, value) != ('bias', 'none'):
            raise InputError(f'{file}: {name}={value!r:.100} cannot be read: {_MERGE}')


def _remedy(stored: _Stored) -> str:
    """What helps against a tensor that is of nothing, as far as it is known."""
    if any('.lora_' in name for name in stored.arrays):
        return f': {_MERGE}'
    if stored.config.get('task_type'):
        return ''
    return (f"; if it is of a head, say in {stored.file} which: 'task_type': "
            f"{', '.join(dict.fromkeys(_TASK_TYPES.values()))}")


def _head_of(stored: _Stored, of_base: str) -> str:
    """The head of a task type of peft: that of the base, if it is of this type.

    Without a type, which is peft's default, the adapter is of the base's own class, or by the names
    in the files of the encoder's. A regression is told by its one output, whatever the base's head.

    Raises:
      InputError: the type is none of an encoder.
    """
    task_type = stored.config.get('task_type')
    if not task_type:
        return '' if stored.added else of_base
    heads = [head for head, kind in _TASK_TYPES.items() if kind == task_type]
    if not heads:
        raise InputError(f'{stored.file}: task_type={task_type!r} cannot be read: '
                         f"{', '.join(dict.fromkeys(_TASK_TYPES.values()))} can be, and null")
    if of_base in heads and of_base != 'regression':
        return of_base
    return heads[0]


def _family_of(names: Collection[str], base: Weights, where: Path) -> Family:
    """The family, as in memory, whose layers have the names of the modules with adapters.

    Of several, it is that which can hold the options of the base.

    Raises:
      InputError: there is none, or it has no adapter.
    """
    modules = {name.partition('.lora_')[0] for name in names if '.lora_' in name}
    found = []
    fewest = modules  # that a family does not know
    for in_files in FAMILIES:
        family = in_files.in_memory
        known = _modules_of(family, base)
        unknown = modules - known - {name.removeprefix(family.prefix) for name in known}
        if modules and not unknown:
            found.append(family)
        fewest = min(fewest, unknown, key=len)
    if found:
        return min(found, key=lambda family: len(family.lost_options(base.model)))
    some = ', '.join(sorted(fewest)[:3]) + (', ...' if len(fewest) > 3 else '') or 'none'
    raise InputError(f'{where} has adapters of {some}: those that can be read are beside '
                     f'matrices in the {base.model["num_layers"]} layers, the embeddings and the '
                     f'pooler of {base.source}: {_MERGE}')


def _modules_of(family: Family, base: Weights) -> set[str]:
    """What a family calls the modules of a model that can have an adapter in a folder of peft."""
    tensors = parameters.tensors(base.model)
    options = AdapterOptions(rank=1, targets='all')
    forms = [family.form_of(adapted.kernel, family.architectures[0])
             for adapted in adapted_kernels(tensors, options)]
    for tensor in tensors:
        if _is_kernel_of_pooler(tensor) or _BEFORE_LAYERS.fullmatch(tensor.name):
            forms += [family.form_of(tensor, each) for each in family.architectures]
    return {name.removesuffix('.weight')
            for form in forms if form is not None for name in form.names}


def _read_adapter(
    stored: _Stored, base: Weights, family: Family, architecture: Architecture
) -> AdapterWeights:
    """The adapter of a model.

    If its matrices have several ranks, or scales, it is written here with the largest rank: further
    columns of a are 0, and what differs in scale is in b. If only some layers have one, those of
    the others are 0.

    Raises:
      InputError: it is of matrices of another size, or of none in the layers.
    """
    named = _adapted_modules(stored, base, family, architecture)
    modules = sorted({module for found in named.values() for module in found.values()})
    if not modules:
        raise InputError(f'{stored.file.with_name(_TENSORS)} has no adapter of the layers, and one '
                         'of the pooler or the embeddings alone cannot be read: merge it with peft '
                         '(merge_and_unload)')
    rank = max(stored.rank(module) for module in modules)
    targets = dict.fromkeys(
        kernel.targets[i] for kernel, found in named.items() for i in found)
    options = _options(stored, rank, ','.join(targets))
    params: dict[str, np.ndarray] = {}
    sizes = parameters.sizes_of(base.model)
    every = parameters.tensors(base.model)
    lengths = first_magnitudes(base.params, options, every)
    for kernel in adapted_kernels(every, options):
        (found,) = (found for other, found in named.items() if other.name == kernel.name)
        shapes = kernel.shapes(options, sizes)
        params |= _kernel_from_files(kernel, found, stored, options, shapes, lengths)
    for module in modules:
        for leaf in _LEAVES:
            stored.arrays.pop(f'{module}.{leaf}', None)
    return AdapterWeights(options, params, _base_in(stored.config))


def _adapted_modules(
    stored: _Stored, base: Weights, family: Family, architecture: Architecture
) -> dict[AdaptedKernel, dict[int, str]]:
    """Of each kernel, the modules of its matrices that have an adapter, by number."""
    named: dict[AdaptedKernel, dict[int, str]] = {}
    for kernel in adapted_kernels(
            parameters.tensors(base.model), AdapterOptions(rank=1, targets='all')):
        form = family.form_of(kernel.kernel, architecture)
        assert form is not None, kernel.name
        modules = [name.removesuffix('.weight') for name in form.names]
        if len(modules) == 1:
            modules *= len(kernel.targets)
        found = {i: module for i, module in enumerate(modules)
                 if f'{module}.lora_A.weight' in stored.arrays}
        named[kernel] = found
    return named


def _options(stored: _Stored, rank: int, targets: str) -> AdapterOptions:
    """The options of an adapter whose largest rank is this."""
    config = stored.config
    kind = 'dora' if config.get('use_dora') else 'rslora' if config.get('use_rslora') else 'lora'
    if config.get('use_dora') and config.get('use_rslora'):
        raise InputError(f'{stored.file}: use_dora with use_rslora cannot be read: merge the '
                         'adapter with peft')
    alpha = stored.alpha
    usual = stored.usual_rank
    if rank != usual:  # so that the scale stays
        alpha *= math.sqrt(rank / usual) if kind == 'rslora' else rank / usual
    return AdapterOptions(kind, rank, alpha, float(config.get('lora_dropout') or 0), targets)


def _kernel_from_files(
    kernel: AdaptedKernel, found: Mapping[int, str], stored: _Stored, options: AdapterOptions,
    shapes: Mapping[str, tuple[int, ...]], lengths: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """The parameters of a kernel's adapters, by our names.

    Args:
      kernel: with its adapters.
      found: the module of each of its matrices that has an adapter in the files.
      stored: the files.
      options: of the adapter.
      shapes: of these parameters, by name.
      lengths: of the columns of kernels, by the names of magnitudes.
    """
    name_a, name_b, *magnitudes = shapes
    num_adapted = len(kernel.adapted)
    num_inputs = math.prod(shapes[name_a]) // (num_adapted * options.rank)
    num_outputs = math.prod(shapes[name_b]) // (num_adapted * options.rank)
    params: dict[str, np.ndarray] = {
        name_a: np.zeros((num_inputs, num_adapted, options.rank), np.float32),
        name_b: np.zeros((options.rank, num_adapted, num_outputs), np.float32)}
    for name in magnitudes:
        params[name] = lengths[name].reshape(num_adapted, -1).copy()
    is_shared = len(set(found.values())) < len(found)  # one module has several of our matrices
    for matrix, module in found.items():
        read = _read_module(
            stored, module, options, num_inputs,
            num_outputs * (len(kernel.targets) if is_shared else 1))
        own = slice(matrix * num_outputs, (matrix + 1) * num_outputs) if is_shared else slice(None)
        place = kernel.adapted.index(matrix)
        rank = len(read.a_RxI)
        params[name_a][:, place, :rank] = read.a_RxI.T
        params[name_b][:rank, place] = read.b_OxR[own].T
        for name in magnitudes:
            params[name][place] = read.magnitude_O[own]
    return {name: x.reshape(shapes[name]) for name, x in params.items()}


class _Module(NamedTuple):
    """The adapter of one module of peft; R is its own rank.

    Attributes:
      a_RxI, b_OxR: its matrices; b is scaled so that the scale of our options is right for it.
      magnitude_O: the lengths of DoRA's columns; empty for other kinds.
    """

    a_RxI: np.ndarray
    b_OxR: np.ndarray
    magnitude_O: np.ndarray


def _read_module(
    stored: _Stored, module: str, options: AdapterOptions, num_inputs: int, num_outputs: int
) -> _Module:
    """The adapter of a module; raises InputError if its tensors have other sizes."""
    rank = stored.rank(module)
    a_RxI = _tensor(stored, f'{module}.lora_A.weight', (rank, num_inputs))
    b_OxR = _tensor(stored, f'{module}.lora_B.weight', (num_outputs, rank))
    ratio = np.float32(stored.scale(module, rank) / options.scale)
    magnitude_O = np.zeros(0, np.float32)
    if options.kind == 'dora':
        magnitude_O = _tensor(stored, f'{module}.lora_magnitude_vector', (num_outputs,))
    return _Module(a_RxI, b_OxR if ratio == 1 else b_OxR * ratio, magnitude_O)


def _tensor(stored: _Stored, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor in float32; raises InputError if it is missing or has another shape."""
    array = stored.arrays.get(name)
    if array is None or array.shape != shape:
        found = 'missing' if array is None else list(array.shape)
        raise InputError(f'{stored.file.with_name(_TENSORS)}: {name} is {found}, and by '
                         f'{stored.file.name} and the model it is {list(shape)}: is the adapter of '
                         'this model?')
    return array.astype(np.float32)


def _is_kernel_of_pooler(tensor: Tensor) -> bool:
    """Whether a parameter is the matrix in front of a classifier."""
    return part_of(tensor.name) is POOLER and tensor.name.endswith('/kernel')


def _with_product(stored: _Stored, module: str, of_base: np.ndarray) -> np.ndarray | None:
    """A matrix [O, I] of the base with the adapter that the files have of it; None: they have none.

    Args:
      stored: the files; what is read is removed.
      module: of peft.
      of_base: the matrix.
    """
    if f'{module}.lora_A.weight' not in stored.arrays:
        return None
    rank = stored.rank(module)
    num_outputs, num_inputs = of_base.shape
    a_RxI = _tensor(stored, f'{module}.lora_A.weight', (rank, num_inputs))
    b_OxR = _tensor(stored, f'{module}.lora_B.weight', (num_outputs, rank))
    matrix_OxI = of_base + stored.scale(module, rank) * (b_OxR @ a_RxI)
    if stored.config.get('use_dora'):
        length_O = _tensor(stored, f'{module}.lora_magnitude_vector', (num_outputs,))
        matrix_OxI *= (length_O / np.linalg.norm(matrix_OxI, axis=1))[:, None]
    for leaf in _LEAVES:
        stored.arrays.pop(f'{module}.{leaf}', None)
    return matrix_OxI.astype(np.float32)


def _with_product_of_table(
    stored: _Stored, module: str, of_base: np.ndarray
) -> np.ndarray | None:
    """As `_with_product`, of a table [I, O], whose factors have other names; not of 'dora'."""
    names = [f'{module}.lora_embedding_{letter}' for letter in 'AB']
    if names[0] not in stored.arrays:
        return None
    rank = stored.rank(module)
    num_inputs, num_outputs = of_base.shape
    a_RxI = _tensor(stored, names[0], (rank, num_inputs))
    b_OxR = _tensor(stored, names[1], (num_outputs, rank))
    for name in names:
        del stored.arrays[name]
    table_IxO = of_base + stored.scale(module, rank) * (b_OxR @ a_RxI).T
    return table_IxO.astype(np.float32)


def _drop_copy(stored: _Stored, module: str, of_base: np.ndarray) -> None:
    """Drops the copy of the base's own table that peft writes beside an adapter of it.

    Raises:
      InputError: it is another table.
    """
    name = f'{module}.base_layer.weight'
    copy = stored.arrays.pop(name, None)
    if copy is not None and not np.array_equal(copy, of_base.astype(copy.dtype)):
        raise InputError(f'{stored.file.with_name(_TENSORS)}: {name} is not the table of the base, '
                         f'and one that was trained cannot be read beside its adapter: {_MERGE}')


def _adapted_embeddings(
    stored: _Stored, base: Weights, family: Family, architecture: Architecture, head: str
) -> dict[str, np.ndarray]:
    """The parameters in front of the layers that have adapters in the files, with these, by name.

    The tables of a masked LM are its output layer, too, which peft leaves as it is: their adapters
    are not read.
    """
    found: dict[str, np.ndarray] = {}
    for tensor in parameters.tensors(base.model):
        match = _BEFORE_LAYERS.fullmatch(tensor.name)
        form = family.form_of(tensor, architecture) if match else None
        if match is None or form is None or (match[1] and head == 'pretraining'):
            continue
        read = _with_product_of_table if match[1] else _with_product
        (name,) = form.names
        (of_base,) = tensor.to_files(form, base.params[tensor.name])
        module = name.removesuffix('.weight')
        _drop_copy(stored, module, of_base)
        array = read(stored, module, of_base)
        if array is not None:
            sizes = parameters.sizes_of(base.model)
            found[tensor.name] = tensor.from_files(form, [array], sizes)
    return found


def _kept_of_base(
    base: Weights, architecture: Architecture, head: str, of_head: Sequence[Tensor]
) -> dict[str, np.ndarray]:
    """The base's parameters that a model with another head has too.

    They are those with the same name in transformers: a classifier of ModernBERT stands behind the
    dense layer of the masked LM.
    """
    kept = {None, POOLER} & {None, *architecture.parts}
    if head == base.head:
        kept |= set(architecture.parts)
    params = {name: x for name, x in base.params.items() if part_of(name) in kept}
    sizes = parameters.sizes_of(base.model)
    shapes = {tensor.name: tensor.shape(sizes) for tensor in of_head}
    for here, there in shared_layers(base, shapes, head).items():
        params.pop(here, None)
        if there:
            params[here] = base.params[there]
    return params


def _read_head(
    stored: _Stored, base: Weights, family: Family, architecture: Architecture, head: str
) -> dict[str, np.ndarray]:
    """The base's parameters with the head of the files; what these lack of it is the base's.

    Without a head, there need not be a pooler either. An adapter of the pooler, which is trained as
    a part of the head here, is added to its kernel.

    Raises:
      InputError: a parameter of the head is missing.
    """
    of_head = [tensor for tensor in parameters.tensors(base.model)
               if part_of(tensor.name) in architecture.parts]
    params = _kept_of_base(base, architecture, head, of_head)
    missing = []
    for tensor in of_head:
        form = family.form_of(tensor, architecture)
        assert form is not None, tensor.name
        (name,) = form.names
        array = stored.arrays.pop(name, None)
        if _is_kernel_of_pooler(tensor) and tensor.name in params:
            (of_base,) = tensor.to_files(form, params[tensor.name])
            adapted = _with_product(stored, name.removesuffix('.weight'), of_base)
            array = array if adapted is None else adapted
        if array is None:
            if tensor.name not in params:
                missing.append(name)
            continue
        num_labels = len(array) if part_of(tensor.name) is CLASSIFIER else 0
        sizes = parameters.sizes_of(base.model, num_labels)
        if array.shape != tensor.shape_in(form, sizes):
            raise InputError(f'{stored.file.with_name(_TENSORS)}: {name} is {list(array.shape)}, '
                             f'and by the model it is {list(tensor.shape_in(form, sizes))}')
        params[tensor.name] = tensor.from_files(form, [array], sizes)
    if missing and (head or any(part_of(name) is POOLER for name in params)):
        raise InputError(f'{stored.file.with_name(_TENSORS)} has no {missing[0]}, nor has '
                         f'{base.source}: its head is not there')
    return params
