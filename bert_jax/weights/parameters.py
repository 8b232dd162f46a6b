"""The common part of all formats: parameter names, config fields, `Weights`, checks.

One table of parameter names (`bert/encoder/layer_0/...`) serves reading and writing, with an
unpadded vocabulary; `to_tree` and `from_tree` convert between these parameters and the nested dicts
that the model takes, with a padded vocabulary. The letters of dims are those of `heads.tensors`.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.config.bert_config import OPTIONS, BertConfig, Option, Spelling
from bert_jax.heads import HEADS, PARTS, part_of
from bert_jax.heads.classification import CLASSIFIER
from bert_jax.heads.tensors import POOLER, Dim, Form, Part, Tensor, dense, layer_norm, table
from bert_jax.model.relative import NUM_BUCKETS
from bert_jax.runtime.checksum import not_finite
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path
from bert_jax.runtime.schema import why_not_allowed
from bert_jax.weights import adapters
from bert_jax.weights.adapters import AdapterWeights

# The spellings of options in run directories: each is a field of its own name.
IN_RUN: Mapping[str, Spelling] = {option.name: Spelling(option.name) for option in OPTIONS}


def _embeddings(config: BertConfig) -> list[Tensor]:
    """The parameters before the layers."""
    every = [table('bert/embeddings/word_embeddings', 'V')]
    if config.positions == 'table':
        every.append(table('bert/embeddings/position_embeddings', 'P'))
    if config.type_vocab_size:
        every.append(table('bert/embeddings/token_type_embeddings', 'T'))
    if config.embedding_norm:
        every += layer_norm('bert/embeddings/LayerNorm', 'E')
    if config.num_embedding_columns != config.hidden_size:
        every += dense('bert/embeddings_project', ('E',), ('H',))
    return every


def _layer(i: int, config: BertConfig) -> list[Tensor]:
    """The parameters of an encoder layer."""
    name = f'bert/encoder/layer_{i}'
    norms = ['attention/output/LayerNorm', 'output/LayerNorm']
    if config.pre_norm:
        norms = ['attention/LayerNorm', 'intermediate/LayerNorm']
        if i == 0 and config.embedding_norm:
            norms = ['intermediate/LayerNorm']
    if config.num_kv_heads:
        every = [
            *dense(f'{name}/attention/self/query', ('H',), ('N', 'D')),
            *dense(f'{name}/attention/self/key_value', ('H',), ('G', 'D'), num_fused=2)]
    else:
        every = [*dense(f'{name}/attention/self/qkv', ('H',), ('N', 'D'), num_fused=3)]
    every += [
        *dense(f'{name}/attention/output/dense', ('N', 'D'), ('H',)),
        *dense(
            f'{name}/intermediate/dense', ('H',), ('I',), num_fused=2 if config.gated else 0),
        *dense(f'{name}/output/dense', ('I',), ('H',)),
    ]
    for norm in norms:
        every += layer_norm(f'{name}/{norm}')
    return every


def _without_other_formats(
    name: str, out_dims: tuple[Dim, ...], in_dims: tuple[Dim, ...] = ()
) -> Tensor:
    """A parameter that only run directories store."""
    return Tensor(name, name, out_dims, in_dims)


# Of a model with `relative_positions`.
_RELATIVE_POSITIONS = Tensor(
    'bert/relative_positions', 'bert/relative_positions', out_dims=('N',), in_dims=(NUM_BUCKETS,))
# Parameters of a model with `bilstm`: 2 directions and 4 gates.
_BILSTM = (
    _without_other_formats('bilstm/kernel', (2, 4, 'U'), ('H',)),
    _without_other_formats('bilstm/recurrent_kernel', (4, 'U'), (2, 'U')),
    _without_other_formats('bilstm/bias', (2, 4, 'U')),
)
# Beginnings of the names of all parameters but the pooler's and the heads'.
ENCODER = (
    'bert/embeddings/', 'bert/embeddings_project/', 'bert/relative_positions', 'bert/encoder/',
    'bert/LayerNorm/')
# Arrays with a row for each token of the vocabulary, which the model pads.
VOCABULARY_ROWS = (
    'bert/embeddings/word_embeddings', 'cls/predictions/output_bias',
    'cls/predictions/output_embeddings')


def tensors(model: Mapping[str, Any]) -> list[Tensor]:
    """All parameters that a model can have, with any head; `model` as in `Weights`."""
    config = BertConfig(**model)
    every = _embeddings(config)
    if config.relative_positions:
        every.append(_RELATIVE_POSITIONS)
    for i in range(config.num_distinct_layers):
        every += _layer(i, config)
    if config.pre_norm:
        every += layer_norm('bert/LayerNorm')
    if config.bilstm:
        every += _BILSTM
    for part in PARTS:
        every += part.tensors
    return [tensor for tensor in every if not _is_left_out(tensor.name, config)]


_OF_TWO_LAYERS = ('cls/predictions/transform/first/', 'cls/predictions/transform/second/')


def _is_left_out(name: str, config: BertConfig) -> bool:
    """Whether a model lacks a parameter of a module that it has, or of a part."""
    if name.startswith('bert/pooler/') and not config.pooler:
        return True
    if name.startswith('bert/pooler/LayerNorm/') and not config.pooler_norm:
        return True
    if name.startswith('cls/predictions/'):
        if name.startswith(_OF_TWO_LAYERS):
            return config.masked_lm_head != 'two_layers' or name.endswith('/bias')
        is_own = name == 'cls/predictions/output_embeddings'
        if is_own == (config.masked_lm_head == 'bert'):
            return True
    if not name.endswith('/bias'):
        return False
    if name.endswith('LayerNorm/bias') and config.norm == 'rms':
        return True
    if re.fullmatch(r'bert/encoder/layer_\d+/intermediate/dense/bias', name):
        return not config.has_intermediate_biases
    if re.fullmatch(r'bert/encoder/layer_\d+/.*/(qkv|query|key_value|dense)/bias', name):
        return not config.has_layer_biases
    if config.biases:
        return False
    # Output layers of heads always have theirs.
    return name.startswith(('bert/', 'cls/predictions/transform/'))


def sizes_of(model: Mapping[str, Any], num_labels: int = 0) -> dict[str, int]:
    """The size of each dim, by letter, from the fields of `Weights.model`."""
    config = BertConfig(**model)
    return {
        'V': model['vocab_size'],
        'P': model['max_position_embeddings'],
        'T': model['type_vocab_size'],
        'E': config.num_embedding_columns,
        'H': model['hidden_size'],
        'I': model['intermediate_size'],
        'N': model['num_heads'],
        'G': config.num_kv_heads,
        'D': model['hidden_size'] // model['num_heads'],
        'U': model['hidden_size'] // 2,
        'L': num_labels,
        'M': config.num_masked_lm_columns,
    }


def to_tree(params: Mapping[str, np.ndarray], padded_vocab_size: int | None) -> dict[str, Any]:
    """Parameters as the model takes them: nested dicts.

    Args:
      params: arrays by name, unpadded, as in `Weights.params`.
      padded_vocab_size: rows to which `VOCABULARY_ROWS` are padded with zeros; None: no padding.
    """
    flat = dict(params)
    if padded_vocab_size is not None:
        for name in VOCABULARY_ROWS:
            if name in flat:
                flat[name] = with_rows(flat[name], padded_vocab_size)
    return dict(unflatten_dict(flat, sep='/'))


def with_rows(array: np.ndarray, num_rows: int) -> np.ndarray:
    """A copy of an array with rows of zeros added until it has `num_rows`."""
    missing = num_rows - len(array)
    other_dims = [(0, 0)] * (array.ndim - 1)
    return np.pad(array, [(0, missing), *other_dims])


def from_tree(tree: Mapping[str, Any], vocab_size: int) -> dict[str, np.ndarray]:
    """Parameters by name, without padding rows; inverse of `to_tree`. Nothing is copied."""
    params: dict[str, np.ndarray] = flatten_dict(tree, sep='/')
    for name in VOCABULARY_ROWS:
        if name in params:
            params[name] = params[name][:vocab_size]
    return params


def read_model(
    config: Mapping[str, Any], spellings: Mapping[str, Spelling], where: Path
) -> dict[str, Any]:
    """`Weights.model` from a config file.

    Args:
      config: the JSON object in the file.
      spellings: of the options there, by name; options without one have their default.
      where: the file, for messages.

    Raises:
      InputError: a field is missing or has an invalid value.
    """
    model = {option.name: _read_option(option, config, spellings, where) for option in OPTIONS}
    heads = model['num_heads']
    hidden = model['hidden_size']
    if hidden % heads:
        raise InputError(f"{where}: {spellings['num_heads'].key}={heads} does not divide "
                         f"{spellings['hidden_size'].key}={hidden}")
    return model


def check_model(model: Mapping[str, Any], where: object) -> None:
    """Raises InputError if options contradict each other or have values that are not allowed.

    Args:
      model: every option.
      where: they are from, for messages.
    """
    for option in OPTIONS:
        wrong = why_not_allowed(model[option.name], option.allowed)
        if wrong:
            raise InputError(f'{where}: {option.name}={model[option.name]!r} {wrong}')
    contradiction = BertConfig(**model).contradiction()
    if contradiction:
        raise InputError(f'{where}: {contradiction}')


def _read_option(
    option: Option, config: Mapping[str, Any], spellings: Mapping[str, Spelling], where: Path
) -> Any:
    """The value of an option in a config file; its default if the file leaves it out."""
    spelling = spellings.get(option.name)
    if spelling is None:
        return option.default
    value = config.get(spelling.key)
    if value is None:
        if option.default is None:
            raise InputError(f'{where} has no {spelling.key}: it is not a BERT config')
        return option.default
    if spelling.values:
        if str(value) not in spelling.values:
            raise InputError(f'{where}: {spelling.key}={value!r} is not one that can be read: '
                             f"{', '.join(spelling.values)}")
        value = spelling.values[str(value)]
    wrong = why_not_allowed(value, spelling.allowed or option.allowed)
    if wrong:
        raise InputError(f'{where}: {spelling.key}={value!r} {wrong}')
    return option.type(value)


def spelled(model: Mapping[str, Any], spellings: Mapping[str, Spelling]) -> dict[str, Any]:
    """The fields of a config file, as far as it can hold the options; inverse of `read_model`.

    An option without spelling, or with a value that the format cannot have, is left out.

    Args:
      model: every field.
      spellings: of the options, by name.
    """
    config: dict[str, Any] = {}
    for name, spelling in spellings.items():
        if is_expressible(spelling, model[name]):
            config[spelling.key] = _word_for(model[name], spelling)
    return config


def is_expressible(spelling: Spelling | None, value: Any) -> bool:
    """Whether a format with this spelling of an option can hold a value of it."""
    if spelling is None:
        return False
    if spelling.values:
        return value in spelling.values.values()
    return spelling.allowed is None or value in spelling.allowed


def _word_for(value: Any, spelling: Spelling) -> Any:
    """The word that a config file has for a value of ours."""
    for word, meant in spelling.values.items():
        if meant == value:
            return word
    return value



# `foreign.families.shared_layers`: takes weights, and the shapes and the head of a target; returns
# which of its parameters start as parameters of other names.
SharedLayers = Callable[['Weights', Mapping[str, tuple[int, ...]], str], Mapping[str, str]]


def _no_shared_layers(
    weights: 'Weights', shapes: Mapping[str, tuple[int, ...]], head: str
) -> Mapping[str, str]:
    """Every layer starts as the one of its own name."""
    return {}


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """A model as it is stored on disk.

    Attributes:
      params: float32 arrays by our names (`weights.parameters`), with an unpadded vocabulary.
      model: every field of `BertConfig`.
      head: one of `heads.HEADS`, or a config file's own (`load_weights`, `own_head`); '' is an
        encoder without a head, 'pretraining' masked LM, next sentence or both, as `params` has
        them.
      labels: names of the outputs, by id; empty if the head's outputs have none.
      vocab_file: a vocab.txt or a SentencePiece .model; None where there is none.
      lowercase: whether text is lower-cased before WordPiece.
      unused: names of tensors in the files that have no counterpart here.
      source: what was read and where, for messages.
      inference: how the run made its predictions, as far as its task has these settings:
        `max_seq_length`, `doc_stride`, `max_query_length`, `null_threshold`, `windows`, `num_texts`
        (2: of pairs), `features`, and for vectors of texts `pool` and `normalize`, among others
        (`weights.inference_settings`).
      step_dir: the checkpoint of a run that `params` were read from; None: they are of no run.
      shared_layers: which parameters of a model with another head start as parameters of other
        names (`foreign.families.shared_layers`).
      adapter: the adapter that was trained beside `params` and is not merged into them, or None.
      tasks: for each task of which the files hold an adapter, a function that returns `params` with
        it.
    """

    params: dict[str, np.ndarray]
    model: dict[str, Any]
    head: str
    labels: tuple[str, ...]
    vocab_file: Path | None
    lowercase: bool
    unused: tuple[str, ...]
    source: str
    inference: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    step_dir: Path | None = None
    shared_layers: SharedLayers = _no_shared_layers
    adapter: AdapterWeights | None = None
    tasks: Mapping[str, Callable[[], dict[str, np.ndarray]]] = dataclasses.field(
        default_factory=dict)

    @property
    def merged(self) -> 'Weights':
        """The same model with its adapter, if it has one, merged into the parameters."""
        if self.adapter is None:
            return self
        params = adapters.merged(self.params, self.adapter, tensors(self.model))
        return dataclasses.replace(self, params=params, adapter=None)

    @property
    def num_labels(self) -> int:
        """Outputs of the classifier; 0 where there is none."""
        return len(self.params.get('classifier/bias', ()))

    @property
    def max_length(self) -> int:
        """The most tokens of a sequence, [CLS] and [SEP] included."""
        positions = BertConfig(**self.model).max_length
        return min(positions, self.inference.get('max_seq_length') or positions)

    def has(self, part: str) -> bool:
        """Whether a part of the model is there, such as 'bert/pooler' or 'cls/predictions'."""
        prefix = part.rstrip('/') + '/'
        return any(name.startswith(prefix) for name in self.params)


@dataclasses.dataclass(frozen=True)
class StoredTensors:
    """The tensors of a model's files.

    Attributes:
      form_of: returns how the files hold a parameter; None if their format cannot hold it.
      shapes: the shapes of all tensors, by name.
      read: returns the tensor with a name.
      where: the file, for messages.
      config_file: of the model, for messages.
      parts: the parts that the model's class has, if it is known. Another part is read only if all
        of it is there.
    """

    form_of: Callable[[Tensor], Form | None]
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    where: object
    config_file: Path
    parts: Sequence[Part] = tuple(PARTS)


def take_params(
    stored: StoredTensors, model: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Checks all shapes, then reads our parameters from the tensors, one at a time.

    Args:
      stored: the tensors.
      model: `Weights.model`.

    Returns:
      (`Weights.params`, names of the tensors that have no place in them).

    Raises:
      InputError: a tensor is missing, its shape contradicts the config, or a number in it is
        not finite.
    """
    held, sizes = check_tensors(stored, model)
    params: dict[str, np.ndarray] = {}
    unused = set(stored.shapes)
    for tensor, form in held.items():
        arrays = {name: stored.read(name) for name in form.names}
        check_finite(arrays, stored.where)
        params[tensor.name] = tensor.from_files(form, list(arrays.values()), sizes)
        unused -= set(form.names)
    return params, tuple(sorted(unused))


def from_params(
    form_of: Callable[[Tensor], Form | None],
    params: Mapping[str, np.ndarray],
    model: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """The tensors of a file, by their names there; inverse of `take_params`."""
    files: dict[str, np.ndarray] = {}
    for tensor in tensors(model):
        if tensor.name in params:
            form = form_of(tensor)
            assert form is not None, tensor.name
            files |= zip(form.names, tensor.to_files(form, params[tensor.name]), strict=True)
    return files


def check_finite(arrays: Mapping[str, np.ndarray], where: object) -> None:
    """Raises InputError for tensors with NaN or infinity, which would make all outputs NaN."""
    name = not_finite(arrays)
    if name:
        raise InputError(f'{where}: {name} holds NaN or infinity: take weights from before they '
                         'diverged, or copy them again')


def check_tensors(
    stored: StoredTensors, model: Mapping[str, Any]
) -> tuple[dict[Tensor, Form], dict[str, int]]:
    """(The parameters that the files hold, with their forms; the size of each dim by letter).

    Args:
      stored: the tensors, of which only the shapes are used.
      model: `Weights.model`.

    Raises:
      InputError: the number of layers or a shape contradicts the config, or a part is incomplete.
    """
    _check_num_layers(stored, BertConfig(**model))
    every = tensors(model)
    sizes = sizes_of(model, _num_labels(stored))
    parts = []
    for part in PARTS:
        of_part = [tensor for tensor in every if part_of(tensor.name) is part]
        if _holds_any_of(stored, part) and (
                part in stored.parts or _holds_all(stored, of_part, sizes)):
            parts.append(part)
    held: dict[Tensor, Form] = {}
    for tensor in every:
        if part_of(tensor.name) in (None, *parts):
            form = stored.form_of(tensor)
            assert form is not None, tensor.name
            held[tensor] = form
    for form in held.values():  # before shapes: the number of labels is that of a bias
        _check_present(stored, form)
    for tensor, form in held.items():
        _check_shape(stored, form, tensor.shape_in(form, sizes))
    return held, sizes


def _check_num_layers(stored: StoredTensors, config: BertConfig) -> None:
    """Raises InputError if there are no layers, or not as many as in the config."""
    def first_name(layer: int) -> str:
        kernel, *_ = _layer(layer, config)
        form = stored.form_of(kernel)
        assert form is not None
        return form.names[0]

    layers = itertools.count()
    num_layers = next(layer for layer in layers if first_name(layer) not in stored.shapes)
    if not num_layers and stored.shapes:
        names = ', '.join(sorted(stored.shapes)[:3])
        raise InputError(f'{stored.where} has no tensor {first_name(0)}: its tensors are named '
                         f'otherwise ({names}, ...), so it is of another model or program: save it '
                         'with the program that it is from as a model of transformers')
    if num_layers != config.num_distinct_layers:
        raise InputError(f'{stored.where} has {num_layers} layers, and by '
                         f'{stored.config_file.name} there are {config.num_distinct_layers}: '
                         f'{_put_config_beside(stored)}')


def _put_config_beside(stored: StoredTensors) -> str:
    """The remedy for a config that contradicts the tensors."""
    return f'put the {stored.config_file.name} beside it that belongs to it'


def _holds_any_of(stored: StoredTensors, part: Part) -> bool:
    for tensor in part.tensors:
        form = stored.form_of(tensor)
        if form is not None and any(name in stored.shapes for name in form.names):
            return True
    return False


def _holds_all(
    stored: StoredTensors, every: Iterable[Tensor], sizes: Mapping[str, int]
) -> bool:
    """Whether the files hold all these parameters, of the model's sizes."""
    for tensor in every:
        form = stored.form_of(tensor)
        if form is None:
            return False
        shape = tensor.shape_in(form, sizes)
        if any(tuple(stored.shapes.get(name, ())) != shape for name in form.names):
            return False
    return True


def _num_labels(stored: StoredTensors) -> int:
    """Outputs of the classifier; 0 where there is none."""
    _, bias = CLASSIFIER.tensors
    form = stored.form_of(bias)
    if form is None:
        return 0
    return stored.shapes.get(form.names[0], (0,))[0]


def _check_present(stored: StoredTensors, form: Form) -> None:
    """Raises InputError if a tensor is missing."""
    for name in form.names:
        if name not in stored.shapes:
            raise InputError(f'{stored.where} has no tensor {name}: it is not the whole of a model')


def _check_shape(stored: StoredTensors, form: Form, expected: tuple[int, ...]) -> None:
    """Raises InputError if a tensor has another shape."""
    for name in form.names:
        found = tuple(stored.shapes[name])
        if found != expected:
            raise InputError(f'{stored.where}: {name} is {list(found)}, and by '
                             f'{stored.config_file.name} it is {list(expected)}: '
                             f'{_put_config_beside(stored)}')


def find_head(
    params: Mapping[str, Any], model: Mapping[str, Any], hint: str, named_by: str
) -> str:
    """Finds `Weights.head` from the parameters and the config.

    Args:
      params: by our names.
      model: `Weights.model`.
      hint: the head that the config names, or ''.
      named_by: the file and what it names, for messages.

    Raises:
      InputError: the parameters lack the head that the config names, or the head's pooler.
    """
    present = {part_of(name) for name in params}
    if hint and not present & set(HEADS[hint].parts):
        raise InputError(f'{named_by}, but there is no tensor of such a head: the config '
                         'contradicts the weights')
    if not model['pooler']:
        present.add(POOLER)
    head = hint or _head_of_parts(present)
    if head == 'classification' and len(params['classifier/bias']) == 1:
        head = 'regression'
    needs_pooler = HEADS[head].needs_pooler or 'cls/seq_relationship/kernel' in params
    if needs_pooler and POOLER not in present:
        raise InputError(f'{named_by}, whose head needs a pooler, and there is none')
    return head


def _head_of_parts(present: set[Part | None]) -> str:
    """The head that has one of these parts, if there is any; else ''."""
    with_classifier = 'classification' if POOLER in present else 'token_classification'
    for name in ('question_answering', with_classifier, 'pretraining', 'replaced_tokens'):
        if present & set(HEADS[name].parts):
            return name
    return ''


def check_head(name: Any, where: Path, any_head: bool = False) -> str:
    """Returns `name`; raises InputError if there is no such head.

    Without `any_head`, a head that no other run or format can have is refused, too.
    """
    if name not in HEADS:
        raise InputError(f"{where}: head={name!r} is unknown: {', '.join(filter(None, HEADS))}")
    if HEADS[name].stays_in_run and not any_head:
        raise InputError(f'{where}: {HEADS[name].title()} stays in its run: bert_jax.evaluate and '
                         'bert_jax.predict use it, no other run or format can')
    return str(name)


def read_labels(
    labels: Iterable[str] | None, head: str, params: Mapping[str, np.ndarray], where: Path
) -> tuple[str, ...]:
    """`Weights.labels` from the list in a config file; by default LABEL_0, LABEL_1, ...

    Raises:
      InputError: they are not one distinct name for each output of the classifier.
    """
    labels = tuple(labels or ())
    if not HEADS[head].labelled:
        return labels
    num_labels = len(params['classifier/bias'])
    labels = labels or tuple(f'LABEL_{i}' for i in range(num_labels))
    if len(labels) != num_labels or len(set(labels)) != num_labels:
        raise InputError(f'{where}: labels {list(labels)} for {num_labels} outputs of the '
                         'classifier: there must be as many, each once')
    return labels
