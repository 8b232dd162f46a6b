"""Adapters in peft's format: `adapter_config.json` and `adapter_model.safetensors`.

The model that an adapter is added to, its base, is not in the folder. A folder that is written here
also has `bert_jax.json` with what peft's files do not say: the head, its labels, and how
predictions are made.

    I: inputs, M: matrices of a kernel, or those of them that have an adapter, R: rank, O: outputs
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
# The tables and the matrix before the layers, whose adapters are read, but cannot be trained here.
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
_SCHEMA_OF_OURS: Mapping[str, Any] = {'head': TEXT, 'labels': ListOf(TEXT)}
# Fields of adapter_config.json that only say how the adapter was made, and so are not read, or what
# the tensors say, too (`_check_targets`).
_NOT_READ = (
    'auto_mapping', 'peft_version', 'inference_mode', 'target_modules', 'exclude_modules',
    'modules_to_save', 'layers_pattern', 'layers_to_transform', 'megatron_core', 'eva_config',
    'runtime_config', 'qalora_group_size', 'ensure_weight_tying')
# The values of `init_lora_weights` with which peft leaves the base as it is. Others, such as
# 'pissa', change its kernels before training.
_INITS = (True, False, 'gaussian', 'orthogonal', 'eva')


class _Place(NamedTuple):
    """Where the files have the adapters of a kernel.

    Attributes:
      kernel: the kernel.
      modules: names of peft's modules: one for each matrix of the kernel that has an adapter, or a
        single one for the whole kernel, if it is one matrix in transformers.
    """

    kernel: AdaptedKernel
    modules: tuple[str, ...]


def write_peft(folder: Path, weights: Weights) -> list[str]:
    """Writes a folder that `PeftModel.from_pretrained(base, folder)` loads.

    Args:
      folder: the folder to write; or hf:ORG/NAME, which is uploaded.
      weights: a model with an adapter.

    Returns:
      Notes for the user, a line each.

    Raises:
      InputError: there is no adapter, or peft has none of its kind, or no family of transformers
        has such a model.
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
    # The modules that are several matrices here, with the number of those that have an adapter.
    wide: dict[str, int] = {}
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
    config = _adapter_config(weights, adapter, targets, wide)
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
    return _notes_on_base(adapter.base, family.class_name(architecture))


def _notes_on_base(base: str, class_name: str) -> list[str]:
    """Notes on what peft adds the adapter to.

    Args:
      base: the model that the adapter was trained on; '' if it is not known.
      class_name: the class of transformers that loads the base.
    """
    notes = [f'peft adds it to {base or "the model that it was trained on"}, as {class_name} '
             'loads it']
    if base and (is_run(as_path(base)) or is_step(as_path(base))):
        notes.append(
            'transformers does not read a run of this project: for a folder that it reads, python '
            f'-m bert_jax.convert {shlex.quote(base)} DIR --to huggingface')
    return notes


def _module_of_head(name: str, family: Family) -> str:
    """The module of transformers' class that has a head's tensor: 'bert.pooler' or 'classifier'."""
    parts = name.split('.')
    num = 2 if name.startswith(family.prefix) else 1
    return '.'.join(parts[:num])


def _adapter_config(
    weights: Weights, adapter: AdapterWeights, targets: Sequence[str], wide: Mapping[str, int]
) -> dict[str, Any]:
    """The fields of adapter_config.json, without `modules_to_save`.

    Args:
      weights: the model.
      adapter: its adapter.
      targets: the modules that have an adapter.
      wide: those of them that are several matrices here, with how many of these have an adapter.
    """
    options = adapter.options
    base, revision = adapter.base, None
    if base.startswith('hf:'):
        base, _, named = base.removeprefix('hf:').partition('@')
        revision = named or None
    alphas = {}
    for name, number in wide.items():  # keeps alpha / rank, or with 'rslora' alpha / sqrt(rank)
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
    """Where the files of a class have the adapters of each kernel of a model."""
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
    """The tensors of a kernel's adapters, by their names in the files.

    Where transformers has one matrix for several here, such as query, key and value, the adapters
    of these become one, whose rank is the sum of theirs. Its B has zeros where the columns of one
    matrix would otherwise depend on the A of another.

    Args:
      place: where the adapters are in the files.
      params: the model's parameters.
      adapter: the model's adapter.
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
    """The name of the model that the adapter in a folder is added to, for `load_weights`.

    Raises:
      InputError: adapter_config.json names none.
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
    """Reads a folder of peft: the model is `base` with the adapter and the head of the folder.

    The adapter is beside the parameters (`Weights.adapter`). But if the folder also has adapters of
    embeddings, all adapters are merged into the parameters.

    Args:
      folder: written by `save_pretrained` of a `PeftModel`, or by `write_peft`.
      base: the model that the adapter is added to.

    Raises:
      InputError: a file is missing or damaged, the adapter is of a kind that is not known here, or
        it was trained on another model.
    """
    base = base.merged
    stored, family = _open_folder(folder, base)
    ours: dict[str, Any] = {}
    if exists(folder / _OURS):
        ours = read_fields(folder / _OURS, _SCHEMA_OF_OURS, _REMEDY)
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
    _check_targets(stored)
    adapter = _read_adapter(stored, base, family, architecture)
    params = _read_head(stored, base, family, architecture, head)
    embeddings = _adapted_embeddings(stored, base, family, architecture, head)
    if stored.arrays:
        name = min(stored.arrays, key=lambda name: ('.lora_' not in name, name))
        raise InputError(f'{folder / _TENSORS}: {name} has no place in a model with '
                         f'{HEADS[head].title()}: adapters of the layers and the pooler can be '
                         f'read, and parameters of the head{_remedy(stored)}')
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
    """The content of a folder of peft.

    Attributes:
      arrays: the tensors that are still to be read, by their names in the class with a head.
      config: the content of adapter_config.json.
      file: the path of adapter_config.json.
      added_prefix: what was put before the names in the files, which are of the encoder's class.
    """

    arrays: dict[str, np.ndarray]
    config: Mapping[str, Any]
    file: Path
    added_prefix: str = ''

    def scale(self, module: str, rank: int) -> float:
        """The factor of the product B A of a module."""
        alpha = self._by_pattern('alpha_pattern', module, self.alpha)
        return alpha / (math.sqrt(rank) if self.config.get('use_rslora') else rank)

    def rank(self, module: str) -> int:
        """The rank of a module's matrices."""
        return int(self._by_pattern('rank_pattern', module, self.usual_rank))

    @property
    def alpha(self) -> float:
        """The alpha of modules that no `alpha_pattern` names; peft's default is 8."""
        return float(self.config.get('lora_alpha') or 8)

    @property
    def usual_rank(self) -> int:
        """The rank of modules that no `rank_pattern` names; peft's default is 8."""
        return int(self.config.get('r') or 8)

    def _by_pattern(self, field: str, module: str, default: Any) -> Any:
        """A module's value in a field whose keys are regular expressions of the ends of names."""
        module = module.removeprefix(self.added_prefix)
        for pattern, value in (self.config.get(field) or {}).items():
            try:
                matches = re.fullmatch(rf'(.*\.)?({pattern})', module) is not None
            except re.error as error:
                raise InputError(f'{self.file}: {field} has {pattern!r:.100}, which is no regular '
                                 f'expression ({error}): {_REMEDY}') from None
            if matches:
                return value
        return default


def _open_folder(folder: Path, base: Weights) -> tuple[_Stored, Family]:
    """Reads all tensors of a folder into memory.

    Args:
      folder: of peft.
      base: as for `read_peft`.

    Returns:
      (The content, the family whose modules it names.)

    Raises:
      InputError: the folder cannot be read, or the adapter is of another model.
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
    return _Stored(whole_names, config, file, added_prefix=family.prefix), family


def _check_readable(config: Mapping[str, Any], file: Path) -> None:
    """Raises InputError if a field says that the adapter is another kind than LoRA's."""
    kind = config.get('peft_type')
    if kind != 'LORA':
        raise InputError(f'{file}: peft_type={kind!r} cannot be read: LORA can')
    init = config.get('init_lora_weights', True)
    if init not in _INITS:
        raise InputError(f'{file}: init_lora_weights={init!r} cannot be read: it changed the '
                         'model that the adapter is added to; save it with '
                         'path_initial_model_for_weight_conversion')
    for name, value in config.items():
        is_known = name in (*_SCHEMA, *_NOT_READ, 'init_lora_weights')
        if not is_known and value and (name, value) != ('bias', 'none'):
            raise InputError(f'{file}: {name}={value!r:.100} cannot be read: {_MERGE}')


def _check_targets(stored: _Stored) -> None:
    """Raises InputError if a module has an adapter in the files that peft would leave out."""
    for name in sorted(stored.arrays):
        module, is_adapter, _ = name.removeprefix(stored.added_prefix).partition('.lora_')
        field = _field_without(stored.config, module) if is_adapter else ''
        if field:
            raise InputError(f'{stored.file}: {field}={stored.config[field]!r:.100} leaves out '
                             f'{module}, of which {_TENSORS} has an adapter: put the '
                             f'{ADAPTER_CONFIG} there that belongs to it')


def _field_without(config: Mapping[str, Any], module: str) -> str:
    """The field by which peft adds no adapter to a module; '' where it adds one."""
    targets = config.get('target_modules')
    if targets and targets != 'all-linear' and not _is_named(module, targets):
        return 'target_modules'
    if _is_named(module, config.get('exclude_modules')):
        return 'exclude_modules'
    layers = config.get('layers_to_transform')
    number = re.search(r'(?:^|\.)(\d+)\.', module)
    if layers in (None, []) or not isinstance(targets, list) or module in targets or not number:
        return ''
    listed = layers if isinstance(layers, list) else [layers]
    return '' if int(number[1]) in listed else 'layers_to_transform'


def _is_named(module: str, names: Any) -> bool:
    """Whether a module is of these: ends of names, or a regular expression of whole names."""
    if isinstance(names, str):
        with contextlib.suppress(re.error):
            return re.fullmatch(names, module) is not None
        return False
    return isinstance(names, list) and any(f'.{module}'.endswith(f'.{name}') for name in names)


def _remedy(stored: _Stored) -> str:
    """The end of a message on a tensor that has no place in the model: what may help; or ''."""
    if any('.lora_' in name for name in stored.arrays):
        return f': {_MERGE}'
    if stored.config.get('task_type'):
        return ''
    return (f"; if it is of a head, say in {stored.file} which: 'task_type': "
            f"{', '.join(dict.fromkeys(_TASK_TYPES.values()))}")


def _head_of(stored: _Stored, head_of_base: str) -> str:
    """The head that peft's `task_type` says: that of the base, if it is of this type.

    Without a type, which is peft's default, it is the base's head, or no head if the names in the
    files are those of the encoder's class. A regression is read as a classification here; its one
    output tells it (`parameters.find_head`).

    Raises:
      InputError: models here have no head of this type.
    """
    task_type = stored.config.get('task_type')
    if not task_type:
        return '' if stored.added_prefix else head_of_base
    heads = [head for head, kind in _TASK_TYPES.items() if kind == task_type]
    if not heads:
        raise InputError(f'{stored.file}: task_type={task_type!r} cannot be read: '
                         f"{', '.join(dict.fromkeys(_TASK_TYPES.values()))} can be, and null")
    if head_of_base in heads and head_of_base != 'regression':
        return head_of_base
    return heads[0]


def _family_of(names: Collection[str], base: Weights, where: Path) -> Family:
    """The family whose modules in memory (`Family.in_memory`) include all that have an adapter.

    If there are several, it is the one whose config.json holds most options of the base.

    Args:
      names: of the tensors in the files.
      base: the model that the adapter is added to.
      where: the file, for messages.

    Raises:
      InputError: there is no such family, or the files have no adapter.
    """
    modules = {name.partition('.lora_')[0] for name in names if '.lora_' in name}
    found = []
    fewest = modules  # the modules unknown to the family that knows most of them
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
    """A family's names for the modules of a model that can have an adapter in a folder of peft."""
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
    """The adapter of a model's layers, in the form that one `AdapterOptions` describes.

    All matrices get the largest rank and one scale: a smaller rank is filled with zeros, and b is
    multiplied by what its scale differs. If only some layers have an adapter, it is 0 in the
    others.

    Raises:
      InputError: a matrix has another size in the base, or no adapter is of a layer.
    """
    modules_of = _adapted_modules(stored, base, family, architecture)
    modules = sorted({module for found in modules_of.values() for module in found.values()})
    if not modules:
        raise InputError(f'{stored.file.with_name(_TENSORS)} has no adapter of the layers, and one '
                         'of the pooler or the embeddings alone cannot be read: merge it with peft '
                         '(merge_and_unload)')
    rank = max(stored.rank(module) for module in modules)
    targets = dict.fromkeys(
        kernel.targets[i] for kernel, found in modules_of.items() for i in found)
    options = _options(stored, rank, ','.join(targets))
    params: dict[str, np.ndarray] = {}
    sizes = parameters.sizes_of(base.model)
    every = parameters.tensors(base.model)
    lengths = first_magnitudes(base.params, options, every)
    for kernel in adapted_kernels(every, options):
        (found,) = (found for other, found in modules_of.items() if other.name == kernel.name)
        shapes = kernel.shapes(options, sizes)
        params |= _kernel_from_files(kernel, found, stored, options, shapes, lengths)
    for module in modules:
        for leaf in _LEAVES:
            stored.arrays.pop(f'{module}.{leaf}', None)
    return AdapterWeights(options, params, _base_in(stored.config))


def _adapted_modules(
    stored: _Stored, base: Weights, family: Family, architecture: Architecture
) -> dict[AdaptedKernel, dict[int, str]]:
    """For each kernel, the module of peft of each matrix that has an adapter, by its index."""
    modules_of: dict[AdaptedKernel, dict[int, str]] = {}
    for kernel in adapted_kernels(
            parameters.tensors(base.model), AdapterOptions(rank=1, targets='all')):
        form = family.form_of(kernel.kernel, architecture)
        assert form is not None, kernel.name
        modules = [name.removesuffix('.weight') for name in form.names]
        if len(modules) == 1:
            modules *= len(kernel.targets)
        found = {i: module for i, module in enumerate(modules)
                 if f'{module}.lora_A.weight' in stored.arrays}
        modules_of[kernel] = found
    return modules_of


def _options(stored: _Stored, rank: int, targets: str) -> AdapterOptions:
    """The options of the adapter in the files.

    Args:
      stored: the files.
      rank: the largest rank of its matrices.
      targets: the kinds of matrices that have it, as in `adapter.targets`.

    Raises:
      InputError: it is of two kinds at once.
    """
    config = stored.config
    kind = 'dora' if config.get('use_dora') else 'rslora' if config.get('use_rslora') else 'lora'
    if config.get('use_dora') and config.get('use_rslora'):
        raise InputError(f'{stored.file}: use_dora with use_rslora cannot be read: merge the '
                         'adapter with peft')
    alpha = stored.alpha
    usual = stored.usual_rank
    if rank != usual:  # keeps the scale of the usual rank
        alpha *= math.sqrt(rank / usual) if kind == 'rslora' else rank / usual
    return AdapterOptions(kind, rank, alpha, float(config.get('lora_dropout') or 0), targets)


def _kernel_from_files(
    kernel: AdaptedKernel, found: Mapping[int, str], stored: _Stored, options: AdapterOptions,
    shapes: Mapping[str, tuple[int, ...]], lengths: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """The parameters of a kernel's adapters, by our names.

    Args:
      kernel: the kernel.
      found: the module of each of its matrices that has an adapter in the files, by its index.
      stored: the files.
      options: of the adapter.
      shapes: the shapes of these parameters, by name.
      lengths: the lengths of the columns of kernels, by the names of DoRA's magnitudes.
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
    is_shared = len(set(found.values())) < len(found)  # one module is several matrices here
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
    """The adapter of one module of peft, in float32; R is the module's own rank.

    Attributes:
      a_RxI, b_OxR: its matrices; b is scaled such that `AdapterOptions.scale` is the factor of
        their product.
      magnitude_O: DoRA's lengths of columns; empty for other kinds.
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
    """Whether a parameter is the kernel of the pooler, the dense layer before a classifier."""
    return part_of(tensor.name) is POOLER and tensor.name.endswith('/kernel')


def _with_product(stored: _Stored, module: str, of_base: np.ndarray) -> np.ndarray | None:
    """A matrix [O, I] of the base with its adapter merged; None if the files have no adapter of it.

    Args:
      stored: the files; the tensors that are read are removed from it.
      module: peft's name for the matrix.
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
    """`_with_product` of an embedding table [I, O], whose factors have other names in peft."""
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
    """The base's tables and matrix before the layers, by name, with their adapters merged.

    Only those with an adapter in the files are returned. Adapters of tables are not read for a
    masked LM: the word table is its output layer, too, to which peft adds no adapter.
    """
    found: dict[str, np.ndarray] = {}
    for tensor in parameters.tensors(base.model):
        match = _BEFORE_LAYERS.fullmatch(tensor.name)
        form = family.form_of(tensor, architecture) if match else None
        if match is None or form is None:
            continue
        is_table = bool(match[1])
        if is_table and head == 'pretraining':
            continue
        merged = _with_product_of_table if is_table else _with_product
        (name,) = form.names
        (of_base,) = tensor.to_files(form, base.params[tensor.name])
        module = name.removesuffix('.weight')
        _drop_copy(stored, module, of_base)
        array = merged(stored, module, of_base)
        if array is not None:
            sizes = parameters.sizes_of(base.model)
            found[tensor.name] = tensor.from_files(form, [array], sizes)
    return found


def _kept_of_base(
    base: Weights, architecture: Architecture, head: str, of_head: Sequence[Tensor]
) -> dict[str, np.ndarray]:
    """The base's parameters with which a model with another head starts.

    They are those that have the same name in transformers: a classifier of ModernBERT has the dense
    layer of its masked LM.

    Args:
      base: the model.
      architecture: the class with the other head.
      head: the other head.
      of_head: the parameters of the class besides embeddings and layers.
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
    """The base's parameters, with the head's from the files where these have them.

    An adapter of the pooler is merged into its kernel, because the pooler is trained as a part of
    the head here. A model without a head may lack the pooler.

    Raises:
      InputError: a parameter of the head is neither in the files nor in the base, or has another
        shape.
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
