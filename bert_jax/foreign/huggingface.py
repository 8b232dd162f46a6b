"""Hugging Face folders: `config.json`, tensors, tokenizer, model card."""

import contextlib
import functools
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import yaml

from bert_jax.config.bert_config import OPTIONS, BertConfig
from bert_jax.config.choices import LONGEST_FIRST, TEMPLATE, ZEROS
from bert_jax.foreign.families import FAMILIES, class_of, family_of, family_to_write
from bert_jax.foreign.families.family import Architecture, Family
from bert_jax.foreign.flax_files import FLAX, read_flax
from bert_jax.foreign.safetensors_files import (
    INDEX,
    SINGLE,
    open_tensors,
    write_tensors,
)
from bert_jax.foreign.sentence_files import write_sentence_files
from bert_jax.foreign.task_adapters import TASKS, Stored, parametrized_names, tensors_for_task
from bert_jax.foreign.tokenizer_files import (
    check_tokenizer_class,
    gives_types,
    is_own_kind,
    read_tokenizer,
    tokenizer_settings,
    write_tokenizer,
)
from bert_jax.heads import HEADS, PARTS, part_of
from bert_jax.heads.tensors import POOLER, Form, Part, Tensor
from bert_jax.runtime.errors import InputError, tell_once, visible
from bert_jax.runtime.files import Path, as_path, exists, read_fields
from bert_jax.runtime.new_folder import new_folder, write_json
from bert_jax.runtime.schema import NUMBER, TEXT, TRUTH, AnyOf, ListOf, MapOf, count
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.settings import SETTINGS_FILE
from bert_jax.text.vocab import Vocab
from bert_jax.text.vocab_files import read_file
from bert_jax.weights import parameters
from bert_jax.weights.inference_settings import INFERENCE, framing_of, read_inference
from bert_jax.weights.parameters import StoredTensors, Weights

_FENCE = '---'  # around the front matter of a model card
_OF_THE_CARD = ('library_name:', 'tags:')  # the front matter that every card has
# Fields of config.json besides the model options, which its family reads.
_SCHEMA: Mapping[str, Any] = {
    'architectures': ListOf(TEXT),
    'problem_type': TEXT,
    'id2label': MapOf(AnyOf((TEXT, NUMBER, TRUTH))),
    'tokenizer_class': TEXT,
    TASKS: ListOf(TEXT),
    'lora_rank': count(2**16),
    'lora_alpha': NUMBER,
}
_REMEDY = 'fix it, or download the file again'
_SAVED_BY_TRANSFORMERS = 'transformers_version'  # a field of its config.json
_WORD_EMBEDDINGS = 'bert/embeddings/word_embeddings'
# Tokens that no text has: special ones, and placeholders.
_NO_TEXT = re.compile(r'\[.*\]|<.*>')
# What training programs put around a model, and so before the names of its tensors.
_WRAPPED = re.compile(r'(?:(?:module|_orig_mod|model)\.)+')


class Card(NamedTuple):
    """What people add to a model card.

    Attributes:
      front_matter: lines of YAML for its head, each with its line end.
      text: Markdown below the table of the model's options.
    """

    front_matter: str = ''
    text: str = ('Training data, scores, intended use and license are not known here: add them '
                 'before others use it.')


NO_CARD = Card()


def read_huggingface(named: str | os.PathLike[str], task: str = '') -> Weights:
    """Reads a folder written by `save_pretrained`, of any of `FAMILIES` and with any head.

    Args:
      named: the folder.
      task: the task whose adapter, one of those in the files, is added (`Weights.tasks`); '': none.

    Raises:
      InputError: a file is missing, damaged or contradictory, or the model is of no family.
    """
    folder = as_path(named)
    config_file = folder / 'config.json'
    _note_adapter(folder)
    if not exists(config_file):
        raise InputError(f'{config_file} is missing: a Hugging Face folder holds config.json and '
                         f'{SINGLE} or {FLAX}')
    config = read_fields(config_file, _SCHEMA, _REMEDY)
    family = family_of(config, config_file)
    model = family.model_of(config, config_file)
    if model['pre_norm'] and config.get('tie_last_hidden_states') is False:
        tell_once(f'note: {config_file}: tie_last_hidden_states is false, but the last hidden '
                  'state here is behind the last norm, as last_hidden_state in transformers')
    check_tokenizer_class(folder, config, config_file)
    class_name = _class_name(config)
    architecture = family.architecture(class_name)
    params, unused, architecture = _read_params(
        folder, config, model, config_file, family, architecture, task)
    head = _find_head(config, architecture, params, model, config_file)
    labels = _labels_in(config, head, config_file)
    vocab_file, lowercase = read_tokenizer(folder, model['vocab_size'])
    if vocab_file is not None and model.get('first_position'):
        _check_positions(load_tokenizer(vocab_file, lowercase).vocab, model, config_file)
    settings = read_inference(config.get(INFERENCE), f'{config_file}: {INFERENCE}')
    if 'max_seq_length' in settings and config.get(_SAVED_BY_TRANSFORMERS):
        # transformers copies our settings as they were; the tokenizer's limit may be newer.
        settings['max_seq_length'] = length_limit(folder, model)
    framing: dict[str, str] = {}
    if vocab_file is not None:
        framing = _framing_in(folder, config, vocab_file, model['type_vocab_size'])
    source = f'Hugging Face folder {folder}'
    if class_name:
        source += f' ({class_name})'
    return Weights(
        params=params,
        model=model,
        head=head,
        labels=parameters.read_labels(labels, head, params, config_file),
        vocab_file=vocab_file,
        lowercase=lowercase,
        unused=unused,
        source=source,
        inference=_shorter_limit(folder, model) | framing | settings,
        tasks=_tasks_in(folder, config, config_file))


def _tasks_in(
    folder: Path, config: Mapping[str, Any], config_file: Path
) -> dict[str, Callable[[], dict[str, np.ndarray]]]:
    """`Weights.tasks` of a folder: for each adapter in its files, what reads weights with it."""
    tasks = config.get(TASKS) or []
    if tasks:
        tell_once(f'note: {config_file} names the adapters {", ".join(tasks)}: predict and convert '
                  'add one with --adapter=NAME; a run starts from what convert writes')
    return {task: functools.partial(_params_of, folder, task) for task in tasks}


def _params_of(folder: Path, task: str) -> dict[str, np.ndarray]:
    """The parameters of a folder's model with the adapter of a task."""
    return read_huggingface(folder, task).params


def _framing_in(
    folder: Path, config: Mapping[str, Any], vocab_file: Path, num_types: int
) -> dict[str, str]:
    """`truncation` and `token_types` of `Weights.inference`, as transformers uses the model.

    They are {} in a folder that this project wrote, whose config.json has what differs from the
    defaults.

    Args:
      folder: of a model.
      config: the content of its config.json.
      vocab_file: of its tokenizer.
      num_types: how many token types the model has.
    """
    if config.get(INFERENCE) or is_own_kind(vocab_file):
        return {}
    fields = tokenizer_settings(folder)
    if gives_types(fields, config):
        return {'truncation': LONGEST_FIRST, 'token_types': TEMPLATE}
    if num_types > 1 and 'model_input_names' not in fields:
        _tell_of_types(folder, vocab_file)
    return {'truncation': LONGEST_FIRST, 'token_types': ZEROS}


def _tell_of_types(folder: Path, vocab_file: Path) -> None:
    """Notes, if a tokenizer makes several token types, that its model gets type 0 alone."""
    if load_tokenizer(vocab_file, lowercase=True).vocab.frame.num_types > 1:
        tell_once(f'note: {folder / SETTINGS_FILE} has no model_input_names: the tokens of both '
                  'texts of a pair have type 0, as in transformers 5; for those that the tokenizer '
                  'gives them, add "model_input_names": ["input_ids", "token_type_ids", '
                  '"attention_mask"]')


def _class_name(config: Mapping[str, Any]) -> str:
    """The class of transformers that config.json names in `architectures`; '' if it names none."""
    names = config.get('architectures') or ['']
    return str(names[0])


def _read_params(
    folder: Path,
    config: Mapping[str, Any],
    model: Mapping[str, Any],
    config_file: Path,
    family: Family,
    architecture: Architecture | None,
    task: str,
) -> tuple[dict[str, np.ndarray], tuple[str, ...], Architecture | None]:
    """Reads the parameters of the model in a folder.

    Args:
      folder: of the model.
      config: the content of its config.json.
      model: `Weights.model`.
      config_file: the path of config.json, for messages.
      family: of the model.
      architecture: the class that config.json names; None: it names none of the family.
      task: as for `read_huggingface`.

    Returns:
      (`Weights.params`, `Weights.unused`, `architecture`, or the encoder's class if the files have
      no tensor of its head.)

    Raises:
      InputError: tensors are missing or damaged, or contradict the config or each other.
    """
    with contextlib.ExitStack() as stack:
        where, in_files = _open_tensors(folder, stack)
        by_file_name = tensors_for_task(in_files, config, task, config_file)
        by_name = _by_table_name(by_file_name, family)
        _check_family(by_file_name, by_name, family, where, config_file)
        if architecture is not None and '' not in architecture.heads and all(
                name.startswith(family.prefix) for name in by_name):
            tell_once(f'note: {config_file}: architectures says {_class_name(config)}, and there '
                      f'is no tensor of a head in {where}: it is read as an encoder')
            architecture = family.architecture(family.model_types[family.model_type] + 'Model')
        of_class = architecture or family.architecture_of(by_name)
        family.check_class(config, of_class, config_file)
        _note_missing_decoder(by_name, family, of_class, config, config_file)
        by_name = _with_copies(by_name, family, of_class, model)
        by_name |= _zero_biases(by_name, family, of_class, model, config, config_file)
        stored = StoredTensors(
            form_of=family.forms_in_any(of_class),
            shapes={name: tensor.shape for name, tensor in by_name.items()},
            read=lambda name: by_name[name].read(),
            where=where,
            config_file=config_file,
            parts=PARTS if architecture is None else architecture.parts)
        _check_parametrizations(by_name, stored, model)
        params, unused = parameters.take_params(stored, model)
        _check_longer_names(by_name, unused, family)
        copies = _equal_copies(by_name, unused, params, family, of_class)
    return params, tuple(name for name in unused if name not in copies), architecture


def _equal_copies(
    by_name: Mapping[str, Stored],
    unused: Collection[str],
    params: Mapping[str, np.ndarray],
    family: Family,
    architecture: Architecture,
) -> set[str]:
    """The unused tensors that are equal to the parameters that they are tied to.

    Raises:
      InputError: one differs, and the class has a masked LM, which computes with it.
    """
    tied = set(unused) & set(family.tied)
    equal = set()
    for name in tied:
        parameter = params.get(family.tied[name])
        if parameter is not None and np.array_equal(by_name[name].read(), parameter):
            equal.add(name)
    differing = tied - equal
    if differing and architecture.has('cls/predictions'):
        name = min(differing)
        raise InputError(f'{by_name[name].path}: {name} is not equal to {family.tied[name]}: '
                         'an output layer that is not tied to the embeddings cannot be read')
    return equal


def _open_tensors(
    folder: Path, stack: contextlib.ExitStack
) -> tuple[Path, Mapping[str, Stored]]:
    """Opens a folder's safetensors, or if there are none, its Flax file.

    Args:
      folder: of the model.
      stack: closes the files.

    Returns:
      (The path of the file or index, for messages; its tensors by name.)

    Raises:
      InputError: weights are missing, damaged or pickled.
    """
    flax_file = folder / FLAX
    has_others = exists(folder / SINGLE) or exists(folder / INDEX)
    if not has_others and exists(flax_file):
        return flax_file, read_flax(flax_file)
    return open_tensors(folder, stack)


def _check_family(
    file_names: Collection[str],
    names: Collection[str],
    family: Family,
    where: object,
    config_file: Path,
) -> None:
    """Raises InputError if the tensors are of another family than the config says.

    Args:
      file_names: the tensors' names in the files.
      names: the same tensors' names as the family's tables have them.
      family: the family that the config says.
      where: the files, for messages.
      config_file: the path of config.json.
    """
    if family.first_tensor in names:
        return
    for other in FAMILIES:
        if other.first_tensor in file_names:
            raise InputError(
                f'{config_file} is of {family.name} by its model_type, and {where} is of '
                f'{other.name} ({other.first_tensor}): put the config.json there that belongs to '
                f'it, with model_type {other.model_type!r}')


def _find_head(
    config: Mapping[str, Any],
    architecture: Architecture | None,
    params: Mapping[str, np.ndarray],
    model: Mapping[str, Any],
    config_file: Path,
) -> str:
    """`Weights.head`: by the class, the parameters, and `problem_type` of config.json.

    Raises:
      InputError: they contradict each other.
    """
    named = ''
    pools = False
    if architecture is not None:
        named = architecture.heads[0]
        pools = POOLER in architecture.parts
    class_name = _class_name(config) or 'nothing'
    head = parameters.find_head(
        params, model, named, f'{config_file}: architectures says {class_name}')
    # Without the pooler, files of pre-training still have the masked LM.
    needs_pooler = pools and named not in ('', 'pretraining')
    if needs_pooler and 'bert/pooler/dense/kernel' not in params:
        raise InputError(f'{config_file}: architectures says {class_name}, which has a dense layer '
                         'in front of its last one, and there is none')
    if head not in ('classification', 'regression'):
        return head  # no other class reads a problem type
    problem = config.get('problem_type')
    if head == 'classification' and problem == HEADS['regression'].problem_type:
        num_labels = len(params['classifier/bias'])
        raise InputError(f"{config_file}: problem_type is 'regression' with {num_labels} outputs: "
                         'one is what can be read')
    if problem == HEADS['multi_label'].problem_type:
        return 'multi_label'
    return head


def _labels_in(config: Mapping[str, Any], head: str, config_file: Path) -> list[str]:
    """The labels in `id2label` of config.json, by id; [] for a head without labels.

    Raises:
      InputError: their ids are not 0, 1, ...
    """
    if not HEADS[head].labelled:
        return []
    by_id = config.get('id2label') or {}
    try:
        labels = [str(by_id[str(i)]) for i in range(len(by_id))]
    except (KeyError, TypeError):
        raise InputError(f'{config_file}: id2label does not map 0, 1, ... to labels') from None
    _note_other_ids(config.get('label2id'), labels, config_file)
    return labels


def _note_other_ids(ids: Any, labels: Sequence[str], config_file: Path) -> None:
    """Notes that `label2id` contradicts `id2label`, or has names where `id2label` has none."""
    if not isinstance(ids, Mapping) or not ids:
        return
    for i, label in enumerate(labels):
        other = ids.get(label, i)
        if other not in (i, str(i)):
            tell_once(f'note: {config_file}: {label} is {i} in id2label and {other} in label2id: '
                      'the former is followed, as in transformers')
            return
    unnamed = [f'LABEL_{i}' for i in range(len(ids))]
    if list(labels or unnamed) == unnamed and not set(unnamed) & set(ids):
        tell_once(f'note: {config_file}: its labels have names in label2id alone, where '
                  f"transformers reads none: they are called {', '.join(unnamed[:3])}, ...; write "
                  'them into id2label, too')


def length_limit(folder: Path, model: Mapping[str, Any]) -> int:
    """The most tokens of a sequence: by `model_max_length` and by the model's positions."""
    positions = BertConfig(**model).max_length
    fields = tokenizer_settings(folder)
    limit = fields.get('model_max_length', fields.get('max_len'))
    return min(limit, positions) if isinstance(limit, int) and limit > 2 else positions


def _shorter_limit(folder: Path, model: Mapping[str, Any]) -> dict[str, int]:
    """`max_seq_length`, if the tokenizer allows fewer tokens than the positions do; else {}."""
    limit = length_limit(folder, model)
    return {'max_seq_length': limit} if limit < BertConfig(**model).max_length else {}


def _note_adapter(folder: Path) -> None:
    """Notes that an adapter beside the weights of a model is not applied."""
    adapter = folder / 'adapter_config.json'
    if exists(adapter):
        tell_once(f'note: {adapter} is not applied: the weights are read without the adapter')


def _by_table_name(
    by_file_name: Mapping[str, Stored], family: Family
) -> dict[str, Stored]:
    """Tensors by the names that the family's tables have for them.

    The names in files differ from these in several ways, which transformers reads, too:

    - A training program's wrapper may stand before them (`module.bert...`).
    - The family's `prefix` is missing in models without a head.
    - The prefix is there twice (`bert.bert...`), or stands before the head. If the files also have
      a tensor of the shorter name, the longer name is kept.
    - LayerNorm's parameters are gamma and beta in old files.

    Buffers that are not parameters (`position_ids`) are left out.

    Raises:
      InputError: two tensors have the same name in the tables.
    """
    unwrapped = _unwrapped(by_file_name)
    lacks_prefix = not any(name.startswith(family.prefix) for name in unwrapped)
    after_second_prefix = (family.prefix, *family.beginnings_of_heads)
    by_name: dict[str, Stored] = {}
    current_names = {name: _current_name(name, family) for name in unwrapped}
    all_names = set(current_names.values())
    for file_name, tensor in unwrapped.items():
        if file_name.endswith('.position_ids'):
            continue
        name = current_names[file_name]
        shorter = name.removeprefix(family.prefix)
        if shorter.startswith(after_second_prefix):
            name = name if shorter in all_names else shorter
        elif lacks_prefix and name.startswith(family.beginnings):
            name = family.prefix + name
        if name in by_name:
            raise InputError(f'{tensor.path} has both {by_name[name].name} and {tensor.name}, two '
                             'names of one parameter: save the one that is meant')
        by_name[name] = tensor
    return by_name


def _check_longer_names(
    by_name: Mapping[str, Stored], unused: Collection[str], family: Family
) -> None:
    """Checks the unused tensors that have one `prefix` more than a tensor that was read.

    Raises:
      InputError: two of the same shape differ, and nothing says which of them is meant.
    """
    for name in unused:
        shorter = by_name.get(name.removeprefix(family.prefix))
        if name.removeprefix(family.prefix) in unused or shorter is None:
            continue
        longer = by_name[name]
        same_shape = longer.shape == shorter.shape
        if same_shape and not np.array_equal(longer.read(), shorter.read()):
            raise InputError(
                f'{longer.path}: {longer.name} and {shorter.name} are one parameter and differ: '
                'transformers 5 takes the first of them by name, transformers 4 the shorter one; '
                'save the one that is meant')


def _check_parametrizations(
    by_name: Mapping[str, Stored], stored: parameters.StoredTensors, model: Mapping[str, Any]
) -> None:
    """Raises InputError if the files lack a weight that a parametrization of PyTorch computes.

    An example is spectral_norm. In modules that the model here does not have, it is no error.
    """
    for tensor in parameters.tensors(model):
        form = stored.form_of(tensor)
        for name in form.names if form else ():
            for original in parametrized_names(name):
                if name not in by_name and original in by_name:
                    raise InputError(
                        f'{by_name[original].path}: {name} is missing, and of {original} a '
                        'parametrization of PyTorch computes it: save the weight itself '
                        '(torch.nn.utils.parametrize.remove_parametrizations)')


def _current_name(name: str, family: Family) -> str:
    """The current name of a tensor in transformers; older files may have another."""
    name = re.sub(r'LayerNorm\.gamma$', 'LayerNorm.weight', name)
    name = re.sub(r'LayerNorm\.beta$', 'LayerNorm.bias', name)
    for begin, in_table in family.also_named.items():
        if name.startswith(begin):
            name = in_table + name.removeprefix(begin)
    return name


def _note_missing_decoder(
    by_name: Collection[str],
    family: Family,
    architecture: Architecture,
    config: Mapping[str, Any],
    config_file: Path,
) -> None:
    """Notes that a masked LM, whose own output layer the files lack, gets the word embeddings.

    transformers would initialise such a layer at random.
    """
    decoders = [copy for copy, parameter in family.tied.items() if parameter == _WORD_EMBEDDINGS]
    if (config.get('tie_word_embeddings') is False and architecture.has('cls/predictions')
            and decoders and not set(decoders) & set(by_name)):
        tell_once(f'note: {config_file}: tie_word_embeddings is false, but the files hold no '
                  f'{decoders[0]}: the word embeddings are the output layer')


def _with_copies(
    by_name: Mapping[str, Stored],
    family: Family,
    architecture: Architecture,
    model: Mapping[str, Any],
) -> dict[str, Stored]:
    """The tensors, and those that the files have only as a tied copy under their own names, too.

    An example is a file that has BERT's output layer and leaves out the word embeddings.
    """
    with_copies = dict(by_name)
    form_of = family.forms_in_any(architecture)
    for tensor in parameters.tensors(model):
        for copy, parameter in family.tied.items():
            if parameter == tensor.name and copy in by_name:
                form = form_of(tensor)
                assert form is not None, parameter
                with_copies.setdefault(form.names[0], by_name[copy])
    return with_copies


class _ZeroBias(NamedTuple):
    """Zeros for a bias of the model here that the model in the files does not have."""

    shape: tuple[int, ...]
    path: Path
    name: str

    def read(self) -> np.ndarray:
        """Zeros: adding them changes nothing, so the model computes what it did without a bias."""
        return np.zeros(self.shape, np.float32)


def _zero_biases(
    by_name: Mapping[str, Stored],
    family: Family,
    architecture: Architecture,
    model: Mapping[str, Any],
    config: Mapping[str, Any],
    config_file: Path,
) -> dict[str, Stored]:
    """Zeros, by name, for biases that the model has here and by its config.json lacks in the files.

    Each field that says so is noted.
    """
    sizes = parameters.sizes_of(model)
    forms = _forms_of_present_parts(by_name, family, architecture, model)
    zeros: dict[str, Stored] = {}
    for field, modules in family.without_bias(config).items():
        biases = tuple(f'{module}.bias' for module in modules)
        # Where transformers does not read the field, a bias that the files have is used after all.
        is_read = field in family.defaults
        of_field: dict[str, Stored] = {}
        for tensor, form in forms.items():
            for name in form.names:
                if name.endswith(biases) and (is_read or name not in by_name):
                    of_field[name] = _ZeroBias(tensor.shape_in(form, sizes), config_file, name)
        if of_field:
            tell_once(f'note: {config_file}: {field}=False: these biases are zeros here, which '
                      'training changes')
        zeros |= of_field
    return zeros


def _forms_of_present_parts(
    by_name: Mapping[str, Stored],
    family: Family,
    architecture: Architecture,
    model: Mapping[str, Any],
) -> dict[Tensor, Form]:
    """The forms of all parameters of those parts of a model of which the files have a tensor."""
    forms: dict[Tensor, Form] = {}
    present: set[Part | None] = set()
    form_of = family.forms_in_any(architecture)
    for tensor in parameters.tensors(model):
        form = form_of(tensor)
        if form is None:
            continue
        forms[tensor] = form
        if not by_name.keys().isdisjoint(form.names):
            present.add(part_of(tensor.name))
    return {tensor: form for tensor, form in forms.items() if part_of(tensor.name) in present}


def _unwrapped(by_file_name: Mapping[str, Stored]) -> dict[str, Stored]:
    """Tensors by their names without the prefixes of training programs' wrappers.

    Raises:
      InputError: two tensors have the same name without them.
    """
    tensors: dict[str, Stored] = {}
    for file_name, tensor in by_file_name.items():
        wrapper = _WRAPPED.match(file_name)
        name = file_name[wrapper.end():] if wrapper else file_name
        if name in tensors:
            raise InputError(f'{tensor.path} has both {tensors[name].name} and {file_name}: two '
                             'models are in it; save the one that is meant')
        tensors[name] = tensor
    return tensors


def write_huggingface(
    folder: str | os.PathLike[str], weights: Weights, card: Card = NO_CARD
) -> list[str]:
    """Writes a folder that `from_pretrained` of the head's class loads, tokenizer included.

    Args:
      folder: the folder to write; or hf:ORG/NAME, which is uploaded.
      weights: the model.
      card: what the model card says besides the model's options.

    Returns:
      Notes for the user, a line each.

    Raises:
      InputError: the folder cannot be written or is not empty, no family of transformers has such a
        model, or the weights lack a part of their head.
    """
    family = family_to_write(weights)
    architecture = class_of(family, weights.head, weights.params)
    if architecture is None:
        raise InputError(f'{weights.source} has {HEADS[weights.head].title()}, which no class of '
                         f'{family.name} models has: use --to bert_jax')
    class_name = family.class_name(architecture)
    notes = _missing_parts(weights, architecture, class_name)
    config = _config_to_write(weights, family, class_name)
    for option in family.lost_options(weights.model):
        notes.append(f'{option.name}={weights.model[option.name]!r} has no field in the '
                     f'config.json of {family.name}: training there goes on with another value')
    notes += _left_out_parts(weights, architecture, class_name)
    written = (None, *architecture.parts)  # None: embeddings and layers
    params = {name: x for name, x in weights.params.items() if part_of(name) in written}
    tensors = parameters.from_params(
        lambda tensor: family.form_of(tensor, architecture), params, weights.model)
    if not weights.head:  # the encoder's class has no prefix
        tensors = {name.removeprefix(family.prefix): x for name, x in tensors.items()}
    with new_folder(as_path(folder)) as beside:
        write_tensors(beside, tensors)
        write_json(beside / 'config.json', config)
        model_card = _model_card(weights, class_name, card)
        (beside / 'README.md').write_text(model_card, encoding='utf-8')
        notes += write_tokenizer(beside, weights, config)
        if weights.inference.get('pool') and weights.head in ('', 'pretraining'):
            write_sentence_files(beside, weights)
            notes.append('sentence-transformers pools and scales as the run did (modules.json)')
        elif weights.inference.get('other_pool'):
            notes.append(f"without modules.json: {weights.inference['other_pool']}")
    return notes


def _missing_parts(weights: Weights, architecture: Architecture, class_name: str) -> list[str]:
    """A note, if what a class has and the weights lack is only the pooler of a headless model.

    Raises:
      InputError: the weights lack another part of the class.
    """
    for part in architecture.parts:
        if weights.has(part.prefix):
            continue
        if not weights.head:
            return ['there is no pooler: load it with add_pooling_layer=False']
        missing = part.prefix.rstrip('/')
        raise InputError(f'{weights.source} has no {missing}, which {class_name} needs')
    return []


def _left_out_parts(weights: Weights, architecture: Architecture, class_name: str) -> list[str]:
    """A note, if the weights have parts that the class does not have."""
    written = architecture.parts
    present = {part_of(name) for name in weights.params}
    left_out = sorted(part.prefix.rstrip('/') for part in present if part and part not in written)
    if not left_out:
        return []
    return [f"left out: {', '.join(left_out)} ({class_name} has none)"]


def _config_to_write(weights: Weights, family: Family, class_name: str) -> dict[str, Any]:
    """The contents of config.json.

    Raises:
      InputError: the vocabulary has [PAD] at an id from which the family counts other positions.
    """
    head = HEADS[weights.head]
    token_ids = _token_ids(weights, family)
    fields = family.config_of(weights.model)
    pad_id = token_ids['pad_token_id']
    if weights.vocab_file is not None and fields.get('pad_token_id', pad_id) != pad_id:
        raise InputError(
            f"{weights.source} has first_position={weights.model['first_position']} and [PAD] with "
            f'id {pad_id} in {weights.vocab_file}: {family.name} models count positions from the '
            'id of [PAD] plus 1, so that others would read it as another model; use --to bert_jax')
    config = {
        'architectures': [class_name],
        'model_type': family.model_type,
        'dtype': 'float32',
        **token_ids,
        **fields,
    }
    if head.problem_type or head.labelled:
        labels = weights.labels or ('LABEL_0',)
        config['id2label'] = {str(i): label for i, label in enumerate(labels)}
        config['label2id'] = {label: i for i, label in enumerate(labels)}
    if head.problem_type:
        config['problem_type'] = head.problem_type
    activation = weights.inference.get('activation')
    if activation:  # of a cross-encoder of sentence-transformers
        config['sentence_transformers'] = {'activation_fn': f'torch.nn.{activation}'}
    # It is never empty: a folder without it would be taken for one that transformers has written.
    config[INFERENCE] = dict(weights.inference) or framing_of({})
    return config


def _check_positions(vocab: Vocab, model: Mapping[str, Any], config_file: Path) -> None:
    """Raises InputError if positions are not counted for tokens that texts have.

    The families that count positions from the id of [PAD] plus 1 give all tokens with that id one
    position.
    """
    pad_id = model['first_position'] - 1
    roles = {
        vocab.cls_id: '[CLS]', vocab.sep_id: '[SEP]', vocab.unk_id: '[UNK]',
        vocab.mask_id: '[MASK]'}
    is_padding = pad_id == vocab.pad_id or pad_id >= len(vocab)
    if pad_id not in roles and (is_padding or _NO_TEXT.fullmatch(vocab.tokens[pad_id])):
        return
    name = roles.get(pad_id) or repr(vocab.tokens[pad_id])
    raise InputError(
        f'{config_file}: pad_token_id={pad_id} is the id of {name}, so that these tokens of a text '
        'would have the position of padding: take the pad_token_id and the tokenizer with which '
        'the model was trained')


def _token_ids(weights: Weights, family: Family) -> dict[str, int | None]:
    """config.json's fields with ids of special tokens; without a vocabulary 0 or null."""
    if weights.vocab_file is None:
        unknown = dict.fromkeys(family.token_ids) | {'pad_token_id': 0}
        if 'mask_token_id' in unknown:  # transformers takes no null there
            unknown['mask_token_id'] = 0
        return unknown
    vocab = load_tokenizer(weights.vocab_file, weights.lowercase).vocab
    ids: dict[str, int | None] = {'pad_token_id': vocab.pad_id}
    for field, name in family.token_ids.items():
        ids[field] = getattr(vocab, name)
    return ids


def read_card(path: str | os.PathLike[str]) -> Card:
    """Reads what a Markdown file, which may begin with YAML front matter, adds to a model card.

    Raises:
      InputError: it cannot be read, or its front matter does not end, is no YAML, or has a field
        that every card has already.
    """
    content = read_file(path, 'part of a model card', '--card')
    try:
        text = content.decode('utf-8-sig').strip()
    except UnicodeDecodeError as error:
        raise InputError(f'{path} is not UTF-8 (byte {error.start}): convert it with iconv -t '
                         'UTF-8, or check --card') from None
    lines = text.splitlines()
    fences = [number for number, line in enumerate(lines) if line.rstrip() == _FENCE]
    if not fences or fences[0] > 0:
        return Card(text=text)
    if len(fences) == 1:
        raise InputError(f'{path}: its front matter, which begins in line 1, has no second '
                         f'line {_FENCE}: add it')
    end = fences[1]
    for number, line in enumerate(lines[1:end], 2):
        if line.startswith(_OF_THE_CARD):
            raise InputError(f'{path}, line {number}: {line!r:.60} is what the card says itself: '
                             'leave it out')
    front_matter = ''.join(f'{line}\n' for line in lines[1:end])
    _check_front_matter(front_matter, path)
    return Card(front_matter, '\n'.join(lines[end + 1:]).strip())


def _check_front_matter(text: str, path: object) -> None:
    """Raises InputError unless a text is YAML of fields and values, as model hubs read it."""
    try:
        # Below a fence, as it will be in the card: at the very start, YAML skips a byte order mark.
        fields = yaml.safe_load(f'{_FENCE}\n{text}')
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = ' '.join(str(error).split())
        raise InputError(f'{path}: its front matter is no YAML ({why:.200}): correct it') from None
    if not isinstance(fields, dict | None):
        raise InputError(f'{path}: its front matter has no fields such as `license: mit`: correct '
                         'it')


def _vocabulary_row(vocab_file: Path, lowercase: bool) -> str:
    """The table row of a model card on its tokenizer, such as 'WordPiece, lower-cased text'."""
    tokenizer = load_tokenizer(vocab_file, lowercase)
    if tokenizer.lowercase is None:
        return tokenizer.algorithm
    case = 'lower-cased' if tokenizer.lowercase else 'cased'
    return f'{tokenizer.algorithm}, {case} text'


def _model_card(weights: Weights, class_name: str, own: Card) -> str:
    """The model card in Markdown, with the front matter that model hubs read."""
    num_parameters = sum(x.size for x in weights.params.values())
    rows = {'parameters': f'{num_parameters:,}'}
    for option in OPTIONS:
        value = weights.model[option.name]
        # The others are news only where the model is not the paper's BERT.
        if option.tf1 or value != option.default:
            rows[option.name] = str(value)
    if weights.labels:
        rows['labels'] = ', '.join(weights.labels)
    if weights.vocab_file is not None:
        rows['vocabulary'] = _vocabulary_row(weights.vocab_file, weights.lowercase)
    rows |= {name: str(value) for name, value in weights.inference.items()}
    card = (as_path(__file__).parent / 'model_card.md').read_text(encoding='utf-8')
    return card.format(
        title=HEADS[weights.head].title(),
        source=_in_markdown(re.sub(r'\S*/(.*/)?', '', weights.source)),  # without local paths
        architecture=class_name,
        table='\n'.join(f'| {name} | {_in_markdown(value)} |' for name, value in rows.items()),
        front_matter=own.front_matter,
        text=own.text)


def _in_markdown(text: str) -> str:
    """A text for a line or table cell of Markdown, with all escaped that could be markup."""
    one_line = visible(' '.join(text.split()))
    return re.sub(r'[\\`*<>\[\]|&]', lambda found: f'&#{ord(found[0])};', one_line)
