"""The common part of all formats: parameter names, `Weights`, checks, atomic folder writes.

One table of parameter names (`bert/encoder/layer_0/...`) serves reading and writing, with an
unpadded vocabulary; `to_tree` and `from_tree` convert between these parameters and the nested dicts
that the model takes, with a padded vocabulary. The letters of dims are those of `heads.tensors`.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.config.bert_config import OPTIONS, Format, why_not_allowed
from bert_jax.heads import HEADS, PARTS, part_of
from bert_jax.heads.tensors import POOLER, Dim, Tensor, dense, layer_norm, table
from bert_jax.runtime.checksum import not_finite
from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.files import (
    Path,
    as_path,
    children,
    in_bucket,
    temporary_name,
    upload,
)
from bert_jax.runtime.hub import publish
from bert_jax.runtime.process import DISK_IS_FULL
from bert_jax.text import load_tokenizer
from bert_jax.text.vocab import is_unused, unused_row, write_vocab
from bert_jax.text.wordpiece import WordPieceTokenizer

_TITLES: Mapping[Format, str] = {
    'huggingface': "a Hugging Face folder's config.json", 'tf1': 'a bert_config.json'}
_EMBEDDINGS = (
    table('bert/embeddings/word_embeddings', 'V'),
    table('bert/embeddings/position_embeddings', 'P'),
    table('bert/embeddings/token_type_embeddings', 'T'),
    *layer_norm('bert/embeddings/LayerNorm'),
)


def _layer(name: str) -> list[Tensor]:
    """The parameters of an encoder layer."""
    return [
        *dense(f'{name}/attention/self/qkv', ('H',), ('N', 'D'), fused_qkv=True),
        *dense(f'{name}/attention/output/dense', ('N', 'D'), ('H',)),
        *layer_norm(f'{name}/attention/output/LayerNorm'),
        *dense(f'{name}/intermediate/dense', ('H',), ('I',)),
        *dense(f'{name}/output/dense', ('I',), ('H',)),
        *layer_norm(f'{name}/output/LayerNorm'),
    ]


def _without_other_formats(
    name: str, out_dims: tuple[Dim, ...], in_dims: tuple[Dim, ...] = ()
) -> Tensor:
    """A parameter that only run directories store."""
    return Tensor(name, name, name, out_dims, in_dims)


# Parameters of a model with `bilstm`: 2 directions and 4 gates.
_BILSTM = (
    _without_other_formats('bilstm/kernel', (2, 4, 'U'), ('H',)),
    _without_other_formats('bilstm/recurrent_kernel', (4, 'U'), (2, 'U')),
    _without_other_formats('bilstm/bias', (2, 4, 'U')),
)
# Arrays with a row for each token of the vocabulary, which the model pads.
VOCABULARY_ROWS = ('bert/embeddings/word_embeddings', 'cls/predictions/output_bias')


def tensors(model: Mapping[str, Any]) -> list[Tensor]:
    """All parameters that a model can have, with any head; `model` as in `Weights`."""
    every = list(_EMBEDDINGS)
    for i in range(model['num_layers']):
        every += _layer(f'bert/encoder/layer_{i}')
    if model.get('bilstm'):
        every += _BILSTM
    for part in PARTS:
        every += part.tensors
    return every


def sizes_of(model: Mapping[str, Any], num_labels: int = 0) -> dict[str, int]:
    """The size of each dim, by letter, from the fields of `Weights.model`."""
    return {
        'V': model['vocab_size'],
        'P': model['max_position_embeddings'],
        'T': model['type_vocab_size'],
        'H': model['hidden_size'],
        'I': model['intermediate_size'],
        'N': model['num_heads'],
        'D': model['hidden_size'] // model['num_heads'],
        'U': model['hidden_size'] // 2,
        'L': num_labels,
    }


def to_tree(params: Mapping[str, np.ndarray], padded_vocab_size: int | None) -> dict[str, Any]:
    """Parameters as the model takes them: nested dicts.

    Args:
      params: arrays by name, unpadded, as in `Weights.params`.
      padded_vocab_size: rows to which `VOCABULARY_ROWS` are padded with zeros; None: no padding.
    """
    flat = dict(params)
    for name in VOCABULARY_ROWS:
        if name in flat and padded_vocab_size is not None:
            x = flat[name]
            flat[name] = np.pad(x, [(0, padded_vocab_size - len(x))] + [(0, 0)] * (x.ndim - 1))
    return dict(unflatten_dict(flat, sep='/'))


def from_tree(tree: Mapping[str, Any], vocab_size: int) -> dict[str, np.ndarray]:
    """Parameters by name, without padding rows; inverse of `to_tree`. Nothing is copied."""
    return {name: x[:vocab_size] if name in VOCABULARY_ROWS else x
            for name, x in flatten_dict(tree, sep='/').items()}


def read_model(config: Mapping[str, Any], form: Format, where: Path) -> dict[str, Any]:
    """`Weights.model` from a config file.

    Args:
      config: the JSON object in the file.
      form: the format, which determines keys and values.
      where: the file, for messages.

    Raises:
      InputError: a field is missing or has an invalid value.
    """
    model: dict[str, Any] = {}
    for option in OPTIONS:
        spelling = option.spelling(form)
        value = config.get(spelling.key) if spelling else None
        if spelling is None or (value is None and option.default is not None):
            model[option.name] = option.default
            continue
        if value is None:
            raise InputError(f'{where} has no {spelling.key}: it is not a BERT config')
        if spelling.values and str(value) not in spelling.values:
            raise InputError(f'{where}: {spelling.key}={value!r} is not one that can be read: '
                             f"{', '.join(spelling.values)}")
        value = spelling.values[str(value)] if spelling.values else value
        if wrong := why_not_allowed(value, option.allowed):
            raise InputError(f'{where}: {spelling.key}={value!r} {wrong}')
        model[option.name] = option.type(value)
    heads, hidden = model['num_heads'], model['hidden_size']
    if hidden % heads:
        key = 'num_heads' if form == 'bert_jax' else 'num_attention_heads'
        raise InputError(f'{where}: {key}={heads} does not divide hidden_size={hidden}')
    return model


def write_model(
    model: Mapping[str, Any], form: Format, source: str
) -> tuple[dict[str, Any], list[str]]:
    """(the fields of a config file for `Weights.model`, notes for the user).

    Args:
      model: every field.
      form: the format, which determines keys and values.
      source: where the weights come from, for messages.

    Raises:
      InputError: the format has no key for a field, so the model would be read as another.
    """
    config, notes = {}, []
    for option in OPTIONS:
        value, spelling = model[option.name], option.spelling(form)
        if spelling is None and value != option.default:
            raise InputError(f'{source} has {option.name}={value!r}, which {_TITLES[form]} cannot '
                             f'hold: it would be read as {option.default!r}; use --to bert_jax')
        if spelling is None or (spelling.ours and value == option.default):
            continue
        if spelling.ours:
            notes.append(
                f"{option.name} is {value}: the original's code has {option.default} fixed")
        words = (word for word, meant in spelling.values.items() if meant == value)
        config[spelling.key] = next(words, value)
    return config, notes


# The key of `Weights.inference` in the config files of other formats.
INFERENCE = 'bert_jax_inference'
_FIRST_KERNEL = 'bert/encoder/layer_0/attention/self/qkv/kernel'


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """A model as it is stored on disk.

    Attributes:
      params: float32 arrays by our names (`weights.formats`), with an unpadded vocabulary.
      model: every field of `BertConfig`.
      head: one of `heads.HEADS`; '' is an encoder without a head, 'pretraining' masked LM,
        next sentence or both, as `params` has them.
      labels: names of the outputs, by id; empty if the head's outputs have none.
      vocab_file: a vocab.txt or a SentencePiece .model; None where there is none.
      lowercase: whether text is lower-cased before WordPiece.
      unused: names of tensors in the files that have no counterpart here.
      source: what was read and where, for messages.
      inference: how the run made its predictions: those of `max_seq_length`, `doc_stride`,
        `max_query_length`, `null_threshold`, `windows`, `num_texts` (2: of pairs) and `features`
        that its task has.
      step_dir: the checkpoint of a run that `params` were read from; None: they are of no run.
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

    @property
    def num_labels(self) -> int:
        """Outputs of the classifier; 0 where there is none."""
        return len(self.params['classifier/bias']) if 'classifier/bias' in self.params else 0

    def has(self, part: str) -> bool:
        """Whether a part of the model is there, such as 'bert/pooler' or 'cls/predictions'."""
        return any(name.startswith(part.rstrip('/') + '/') for name in self.params)


def find_vocabulary(folder: Path) -> Path | None:
    """The vocab.txt or vocab.model in a folder, if there is one."""
    paths = (folder / 'vocab.txt', folder / 'vocab.model')
    return next((path for path in paths if path.exists()), None)


def check_vocabulary(
    path: Path | None, lowercase: Any, vocab_size: int
) -> tuple[Path | None, bool]:
    """(The vocabulary, whether text is lower-cased before WordPiece).

    The latter is `lowercase`; if that is None, the vocabulary tells (`Vocab.is_cased`). An
    embedding may have more rows than there are tokens: some are padded for speed.

    Raises:
      InputError: it has more tokens than the embedding has rows.
    """
    if path is None:
        return None, lowercase is not False
    vocab = load_tokenizer(path, lowercase=True).vocab
    if len(vocab) > vocab_size:
        raise InputError(f'{path} has {len(vocab)} tokens, the embedding has {vocab_size} rows: '
                         'put the vocabulary beside it that belongs to it')
    if len(vocab) < vocab_size:
        tell_once(f'note: {path} has {len(vocab)} tokens, the embedding has {vocab_size} rows: no '
                  f'text uses the last {vocab_size - len(vocab)}; if it is the vocabulary of '
                  'another model, put the one there that belongs to it')
    return path, vocab.is_cased is not True if lowercase is None else bool(lowercase)


def check_order(
    weights: Weights, vocab_file: Any, tokens: Sequence[str], remedy: str
) -> Sequence[str]:
    """The tokens of the weights' own vocabulary; () without one.

    Raises:
      InputError: `tokens`, which `vocab_file` holds, have another token at an id of these; only
        the ids of `[unused…]` tokens may be taken.
    """
    if weights.vocab_file is None:
        return ()
    known = load_tokenizer(weights.vocab_file, weights.lowercase).vocab.tokens
    for line, (token, expected) in enumerate(zip(tokens, known, strict=False), 1):
        if token != expected and not is_unused(expected):
            raise InputError(f'{vocab_file}: line {line} is {token!r}, and {expected!r} in '
                             f'{weights.vocab_file}, the vocabulary of {weights.source}: {remedy}')
    return known


def write_vocabulary(folder: Path, weights: Weights) -> WordPieceTokenizer | None:
    """Writes vocab.txt and returns its tokenizer, or writes vocab.model and returns None.

    The weights must have a vocabulary. In vocab.txt, the rows of the embedding that have no token,
    and those of added tokens, which stand in other files, get names that occur in no text.
    """
    assert weights.vocab_file is not None
    if weights.vocab_file.suffix == '.model':
        (folder / 'vocab.model').write_bytes(weights.vocab_file.read_bytes())
        return None
    tokenizer = load_tokenizer(weights.vocab_file, weights.lowercase)
    assert isinstance(tokenizer, WordPieceTokenizer)
    tokens = list(tokenizer.word_pieces.tokens)
    tokens += map(unused_row, range(len(tokens), weights.model['vocab_size']))
    write_vocab(folder / 'vocab.txt', tokens)
    return tokenizer


def take_params(
    form: Format, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], np.ndarray],
    model: Mapping[str, Any], where: object, config_file: Path,
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Checks all shapes, then reads our parameters from the tensors of a file, one at a time.

    Args:
      form: the format, which determines the tensors' names.
      shapes: of all tensors in the file, by name.
      read: returns the tensor of a name.
      model: `Weights.model`.
      where: the file, for messages.
      config_file: of the model, for messages.

    Returns:
      (`Weights.params`, names of the tensors that have no place in them).

    Raises:
      InputError: a tensor is missing, its shape contradicts the config, or a number in it is
        not finite.
    """
    table, sizes = check_tensors(form, shapes, model, where, config_file)
    params, unused = {}, set(shapes)
    for tensor in table:
        names = tensor.file_names(form)
        stored = {name: read(name) for name in names}
        check_finite(stored, where)
        params[tensor.name] = tensor.from_files(form, list(stored.values()), sizes)
        unused -= set(names)
    return params, tuple(sorted(unused))


def from_params(
    form: Format, params: Mapping[str, np.ndarray], model: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The tensors of a file, by their names there; inverse of `take_params`."""
    files: dict[str, np.ndarray] = {}
    for tensor in tensors(model):
        if tensor.name in params:
            arrays = tensor.to_files(form, params[tensor.name])
            files |= dict(zip(tensor.file_names(form), arrays, strict=True))
    return files


def check_finite(arrays: Mapping[str, np.ndarray], where: object) -> None:
    """Raises InputError for tensors with NaN or infinity, which would make all outputs NaN."""
    if name := not_finite(arrays):
        raise InputError(f'{where}: {name} holds NaN or infinity: take weights from before they '
                         'diverged, or copy them again')


def check_tensors(
    form: Format, shapes: Mapping[str, tuple[int, ...]], model: Mapping[str, Any], where: object,
    config_file: Path,
) -> tuple[list[Tensor], dict[str, int]]:
    """(the parameters that a file holds, the size of each dim); arguments as for `take_params`.

    Raises:
      InputError: the number of layers or a shape contradicts the config, or a part is incomplete.
    """
    remedy = f'put the {config_file.name} beside it that belongs to it'
    table = {tensor.name: tensor for tensor in tensors(model)}
    before, _, after = table[_FIRST_KERNEL].file_names(form)[0].partition('0')
    num_layers = next(i for i in itertools.count() if f'{before}{i}{after}' not in shapes)
    if not num_layers and shapes:
        raise InputError(f'{where} has no tensor {before}0{after}: its tensors are named otherwise '
                         f"({', '.join(sorted(shapes)[:3])}, ...), so it is of another model or "
                         'program: save it with the program that it is from as a BertModel')
    if num_layers != model['num_layers']:
        raise InputError(f'{where} has {num_layers} layers, and by {config_file.name} there are '
                         f"{model['num_layers']}: {remedy}")
    parts = {part for part in PARTS for tensor in part.tensors
             if any(name in shapes for name in tensor.file_names(form))}
    wanted = [tensor for tensor in table.values() if part_of(tensor.name) in (None, *parts)]
    bias, = table['classifier/bias'].file_names(form)
    sizes = sizes_of(model, shapes.get(bias, (0,))[0])
    for tensor in wanted:
        expected = tensor.shape(form, sizes)
        for name in tensor.file_names(form):
            if name not in shapes:
                raise InputError(f'{where} has no tensor {name}: it is not the whole of a model')
            if tuple(shapes[name]) != expected:
                raise InputError(f'{where}: {name} is {list(shapes[name])}, and by '
                                 f'{config_file.name} it is {list(expected)}: {remedy}')
    return wanted, sizes


def find_head(params: Mapping[str, Any], hint: str, named_by: str) -> str:
    """Finds `Weights.head` from the parameters and the config.

    Args:
      params: by our names.
      hint: the head that the config names, or ''.
      named_by: the file and what it names, for messages.

    Raises:
      InputError: the parameters lack the head that the config names, or the head's pooler.
    """
    present = {part_of(name) for name in params}
    pooled = POOLER in present
    heads = [name for name in (
        'question_answering', 'classification' if pooled else 'token_classification', 'pretraining'
    ) if present & HEADS[name].parts()]
    if hint and not present & HEADS[hint].parts():
        raise InputError(f'{named_by}, but there is no tensor of such a head: the config '
                         'contradicts the weights')
    head = hint or next(iter(heads), '')
    if head == 'classification' and len(params['classifier/bias']) == 1:
        head = 'regression'
    if not pooled and (HEADS[head].needs_pooler() or 'cls/seq_relationship/kernel' in params):
        raise InputError(f'{named_by}, whose head needs a pooler, and there is none')
    return head


def check_head(name: Any, where: Path, any_head: bool = False) -> str:
    """Returns `name`; raises InputError if there is no such head.

    Without `any_head`, a head that no other run or format can have is refused, too.
    """
    if name not in HEADS:
        raise InputError(f"{where}: head={name!r} is unknown: {', '.join(filter(None, HEADS))}")
    if not (any_head or HEADS[name].classes):
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


_ASKED_FIRST = ('config.json', 'bert_config.json')


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder on this machine to write into, which becomes `target` when the block succeeds.

    On a disk it is renamed. For hf:ORG/NAME it is published on the Hugging Face hub. For a bucket
    its files are uploaded, last the one that readers ask for first, `config.json` or
    `bert_config.json`: without it, a model is incomplete.

    Raises:
      InputError: `target` holds something already, or cannot be written.
      OSError: its disk is full.
    """
    check_free(target)
    try:
        on_hub = os.fspath(target).startswith('hf:')
        if in_bucket(target) or on_hub:
            with tempfile.TemporaryDirectory(prefix='bert_jax_') as folder:
                yield as_path(folder)
                if on_hub:
                    publish(folder, os.fspath(target))
                    return
                paths = [as_path(root) / name for root, _, names in os.walk(folder)
                         for name in names]
                for path in sorted(paths, key=lambda path: path.name in _ASKED_FIRST):
                    upload(path, target / str(path.relative_to(folder)))
            return
        beside = temporary_name(target)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            beside.mkdir()
            yield beside
            os.replace(beside, target)  # fails if the target is a folder that is not empty
        finally:
            beside.rmtree(missing_ok=True)
    except OSError as error:
        if re.search(DISK_IS_FULL, str(error)):
            raise  # the error boundary names the full disk
        raise InputError(f'{target} cannot be written: {error.strerror or error}') from error


def check_free(target: Path) -> None:
    """Raises InputError if a target is a file, or a folder that is not empty."""
    if children(target) or (target.exists() and not target.is_dir()):
        raise InputError(f'{target} is there already: name a new folder, nothing is written over')


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes an indented JSON object, in UTF-8."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + '\n', encoding='utf-8')
