"""Completes a config from the weights that its run starts from."""

import string
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.config import DECIDED, SIZES, model_sizes
from bert_jax.config.bert_config import Option
from bert_jax.config.choices import GOOGLE, TEMPLATE
from bert_jax.config.fields import pretraining_kind
from bert_jax.config.mixtures import weighted_sources
from bert_jax.rows.store import PREPARED, open_finished
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.text.kinds import find_lowercase, load_tokenizer
from bert_jax.weights.inference_settings import framing_of
from bert_jax.weights.parameters import Weights

# They may differ from the checkpoint: the position table can be cut or repeated, and fine-tuning
# can add a BiLSTM, or the pooler's layers to heads on tokens.
_RESIZED = ('max_position_embeddings', 'bilstm', 'pools_tokens')

_CAPITALS = ' '.join(string.ascii_uppercase + '\u00c9')


def complete(config: ConfigDict, init_weights: Weights | None = None) -> ConfigDict:
    """A copy in which the fields that `init_checkpoint` determines are filled in.

    Args:
      config: a whole config.
      init_weights: the weights of `init_checkpoint`, or None without one.

    Raises:
      InputError: the config contradicts the weights, or nothing determines the model's size.
    """
    completed = ConfigDict(config.copy_and_resolve_references()).unlock()
    if init_weights is None:
        _take_defaults(completed.model)
    else:
        _take_model_of_weights(completed, init_weights)
    if completed.debug:
        _shorten(completed)
    data = completed.data
    lowercase = data.lowercase
    if lowercase is None and not data.vocab_file and init_weights is None:
        lowercase = _lowercase_of_prepared(completed)
    data.lowercase = _complete_lowercase(data.vocab_file, lowercase, init_weights)
    if init_weights is not None:
        _complete_vocabulary(completed, init_weights)
    if not pretraining_kind(completed.task):
        _complete_framing(data, init_weights)
    if completed.task.startswith('retrieval'):
        _complete_vectors(completed.retrieval, init_weights)
    return completed.lock()


def _complete_framing(data: ConfigDict, init_weights: Weights | None) -> None:
    """`data.truncation` and `data.token_types`, as stated, else as the weights have them."""
    framing = {'truncation': GOOGLE, 'token_types': TEMPLATE}
    if init_weights is not None:
        framing = framing_of(init_weights.inference)
    for name, value in framing.items():
        data[name] = data[name] or value


def _complete_vectors(section: ConfigDict, init_weights: Weights | None) -> None:
    """Fills in `retrieval.pool` and the prompts; prints those that it takes from the weights.

    Raises:
      InputError: the weights pool in a way that is not trained here.
    """
    found: dict[str, str] = {}
    if init_weights is not None:
        inference = init_weights.inference
        _check_vectors(init_weights)
        prompts = inference.get('prompts') or {}
        if section.query_prompt is None:
            found['query_prompt'] = prompts.get('query') or ''
        if section.document_prompt is None:
            found['document_prompt'] = prompts.get('document') or ''
        if not section.pool:
            _check_pool(inference, init_weights.source)
            found['pool'] = inference.get('pool') or ''
        for name, value in found.items():
            if value:
                section[name] = value
                hosts.say(f'note: config.retrieval.{name}={value!r}, as in {init_weights.source}')
    section.update(
        pool=section.pool or 'mean', query_prompt=section.query_prompt or '',
        document_prompt=section.document_prompt or '')


def _check_vectors(weights: Weights) -> None:
    """Prints in what the vectors of the weights will differ here.

    Raises:
      InputError: they are of texts that are lower-cased before their tokenizer.
    """
    inference = weights.inference
    if inference.get('do_lower_case') and not _lowercases(weights):
        raise InputError(
            f'{weights.source} lower-cases texts before its tokenizer (do_lower_case in '
            'sentence_bert_config.json), which a run does not: lower-case those of the table, and '
            'remove it there')
    similarity = inference.get('similarity') or 'cosine'
    if similarity != 'cosine':
        hosts.say(f'note: cosines are trained and scored here, where {weights.source} has '
                  f'similarity_fn_name={similarity!r}')
    num_columns = inference.get('truncate_dim') or 0
    if 0 < num_columns < weights.model['hidden_size']:
        hosts.say(f'note: {weights.source} cuts vectors to {num_columns} columns: '
                  f'config.retrieval.dims={num_columns} scores such beside whole ones')


def _lowercases(weights: Weights) -> bool:
    """Whether the tokenizer of weights lower-cases text itself."""
    if weights.vocab_file is None:
        return False
    tokenizer = load_tokenizer(weights.vocab_file, weights.lowercase)
    if tokenizer.lowercase is None:  # its own normalizer decides
        return tokenizer.encode(_CAPITALS) == tokenizer.encode(_CAPITALS.lower())
    return tokenizer.lowercase


def _check_pool(inference: Mapping[str, Any], source: str) -> None:
    """Raises InputError if weights pool in a way that is not trained here."""
    why = inference.get('other_pool') or ''
    if inference.get('include_prompt') is False and any((inference.get('prompts') or {}).values()):
        why = 'the tokens of prompts are not pooled (include_prompt)'
    if inference.get('pool') == 'max':
        why = 'the maximum over tokens is not trained here'
    if why:
        raise InputError(f"config.retrieval.pool='' is that of {source}: {why}: name mean or cls")


def _lowercase_of_prepared(config: ConfigDict) -> bool | None:
    """Whether the first prepared store among the sources is of lower-cased text; None: no store."""
    if pretraining_kind(config.task) != 'pretrain' or not config.data.source:
        return None
    for source in weighted_sources(config.data.source):
        if source.name.startswith(PREPARED):
            return open_finished(source.name.removeprefix(PREPARED)).manifest['lowercase']
    return None


def _take_defaults(model: ConfigDict) -> None:
    """Fills in the options of a model with random parameters."""
    if not model.name and None in (model[size] for size in SIZES):
        raise InputError(
            'config.model.name is empty, which means the size of config.init_checkpoint: set '
            "one of them, such as --config.init_checkpoint=DIR or --config.model.name='base'")
    for option in DECIDED:
        if model[option.name] is None:
            model[option.name] = option.default


def _take_model_of_weights(config: ConfigDict, init_weights: Weights) -> None:
    """Fills in the options of a model with the parameters of the weights."""
    model = config.model
    if model.name:
        model.update(model_sizes(config))
    for option in DECIDED:
        if model[option.name] is None:
            model[option.name] = init_weights.model[option.name]
        else:
            _check_fits_weights(config, option, init_weights)


def _check_fits_weights(config: ConfigDict, option: Option, init_weights: Weights) -> None:
    """Refuses a model option that the parameters of the weights do not have."""
    stated = config.model[option.name]
    found = init_weights.model[option.name]
    is_fixed = option.effect == 'shape' and option.name not in _RESIZED
    if not is_fixed or stated == found:
        return
    name = config.model.name
    origin = f' (of config.model.name={name!r})' if name else ''
    left_out = 'config.model.name empty' if option.name in SIZES else 'it out'
    raise InputError(
        f'config.model.{option.name}={stated}{origin}, but {init_weights.source} has {found}: '
        f"leave {left_out} to take the checkpoint's, or add --config.init_checkpoint= to begin "
        'with random weights')


def _shorten(config: ConfigDict) -> None:
    """Makes a run a debug run. `LabelledTask` shortens the evaluations of other tasks."""
    with config.ignore_type():
        config.train.update(
            steps=max(3, len(config.phases)), log_every=1, eval_every=0, save_every=0,
            max_eval_examples=config.train.eval_batch_size, profile='')


def _complete_lowercase(
    vocab_file: str, stated: bool | None, init_weights: Weights | None
) -> bool:
    """`data.lowercase`: as stated, else as the vocabulary or the weights have it; says which.

    Args:
      vocab_file, stated: fields of the config; either may be empty.
      init_weights: as for `complete`.
    """
    found, why = _find_lowercase(vocab_file, init_weights)
    if stated is None:
        if vocab_file and why and not found:
            hosts.say(f'note: config.data.lowercase=False: {why}')
        return found
    if why and stated != found:
        hosts.say(f'warning: config.data.lowercase={stated}, but {why}: leave it empty to take '
                  f'{found}')
    return stated


def _find_lowercase(vocab_file: str, init_weights: Weights | None) -> tuple[bool, str]:
    """(Whether text is lower-cased for a vocabulary, how that is known or '')."""
    of_weights = None if init_weights is None else init_weights.lowercase
    if vocab_file and as_path(vocab_file).exists():  # else it is refused where it is read
        found, why = find_lowercase(vocab_file, of_weights)
    else:
        found = of_weights is not False
        why = ''
    if init_weights is not None and not why:
        why = f'as in {init_weights.source}'
    return found, why


def _complete_vocabulary(config: ConfigDict, init_weights: Weights) -> None:
    """Takes the vocabulary of the weights, unless another is stated, and its padded size."""
    if config.data.vocab_file or init_weights.vocab_file is None:
        return
    config.data.vocab_file = str(init_weights.vocab_file)
    vocabulary = load_tokenizer(init_weights.vocab_file, config.data.lowercase).vocab
    num_rows = init_weights.model['vocab_size']
    is_stated = config.model.vocab_size or config.data.add_tokens
    if len(vocabulary) < num_rows and not is_stated:
        config.model.vocab_size = num_rows  # an embedding that was padded
