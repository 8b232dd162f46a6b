"""How sentence-transformers makes vectors and values, from the files beside a model's weights.

Every setting in these files is read here, known to change no vector, or named as not applied.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from bert_jax.config.choices import POOLS
from bert_jax.runtime.errors import InputError, tell, tell_once
from bert_jax.runtime.files import Path, as_path, children, exists, in_bucket, read_fields
from bert_jax.runtime.schema import INSIDE, TEXT, TRUTH, ListOf, MapOf, count
from bert_jax.text.settings import ANY, not_applied


def _sigmoid(x: np.ndarray) -> np.ndarray:
    """The logistic function of each number."""
    from scipy.special import expit  # which takes 0.2 s

    return expit(x)


# The activation of a cross-encoder's value, by the last part of the name that its folder has.
ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    'Identity': lambda x: x,
    'Sigmoid': _sigmoid,
    'Tanh': np.tanh,
}

_CONFIG = 'config_sentence_transformers.json'
_USUAL_PROMPTS = ('query', 'document')  # that every model has, perhaps empty
_REMEDY = 'fix it, or copy the file again'
# The types of the fields that are read, of these files and of a cross-encoder's config.json.
_MODULES = ListOf({'type': TEXT, 'path': INSIDE})
_ENCODER = {'max_seq_length': count(2**24, least=3), 'do_lower_case': TRUTH}
_MODEL = {
    'prompts': MapOf(TEXT), 'default_prompt_name': TEXT, 'activation_fn': TEXT,
    'sbert_ce_default_activation_function': TEXT, 'sentence_transformers': {'activation_fn': TEXT},
    'similarity_fn_name': TEXT, 'truncate_dim': count(2**24)}
_POOLING = {'include_prompt': TRUTH}
_NORMALIZE = {'module_input_name': TEXT, 'module_output_name': TEXT}
# Settings that are read here, or change no vector at these values (`ANY`: at any).
_OF_ENCODER: Mapping[str, Any] = {
    'max_seq_length': ANY, 'do_lower_case': ANY, 'transformer_task': 'feature-extraction',
    'module_output_name': 'token_embeddings', 'unpad_inputs': ANY,
    'modality_config': {'text': {'method': 'forward', 'method_output_name': 'last_hidden_state'}}}
_OF_MODEL: Mapping[str, Any] = {
    'prompts': ANY, 'default_prompt_name': ANY, '__version__': ANY, 'similarity_fn_name': ANY,
    'truncate_dim': ANY, 'model_type': 'SentenceTransformer'}
# The same of a cross-encoder.
_OF_PAIR_ENCODER: Mapping[str, Any] = {
    **_OF_ENCODER, 'transformer_task': 'sequence-classification', 'module_output_name': 'scores',
    'modality_config': {'text': {'method': 'forward', 'method_output_name': 'logits'}}}
_OF_CROSS_ENCODER: Mapping[str, Any] = {
    **_OF_MODEL, 'model_type': 'CrossEncoder', 'activation_fn': ANY, 'keep_in_fp32_modules': ANY,
    'prompts': dict.fromkeys(_USUAL_PROMPTS, '')}
_OF_POOLING: Mapping[str, Any] = {
    'include_prompt': ANY, 'word_embedding_dimension': ANY, 'embedding_dimension': ANY,
    'pooling_mode': ANY}
_MODE_PREFIX = 'pooling_mode_'  # of fields, one for each way of pooling, that are true or false
# The remedy if a folder pools in a way that is not supported.
_HOW_TO_NAME_POOL = f"name pool, one of {', '.join(POOLS)}"
# Modules that need no computation of their own: they are the encoder's, or change vectors only in
# training.
_NO_CHANGE = ('', 'Transformer', 'Dropout')


class Sentences(NamedTuple):
    """The settings in the files beside a model's weights; without these files, the defaults.

    Attributes:
      encoder: the folder with the weights.
      modules: names and folders of the modules, encoder first.
      max_length: the most tokens of a sequence; None: not said.
      prompt: stands before every text.
      lowercase: whether a text is lower-cased before it goes to the tokenizer.
      pool, normalize, include_prompt: how vectors are made where no module says it; the last is
        `pools_prompt`.
      prompts: by name, those that can stand before it (`with_prompt`).
      default_prompt: the name of `prompt`; None: it is ''.
      similarity: by which vectors are compared, such as cosine or dot.
      truncate_dim: the columns to which vectors are cut, after all modules; None: they are not.
    """

    encoder: Path
    modules: tuple[tuple[str, Path], ...] = ()
    max_length: int | None = None
    prompt: str = ''
    lowercase: bool = False
    pool: str = 'mean'
    normalize: bool = False
    prompts: Mapping[str, str] = {}
    default_prompt: str | None = None
    similarity: str = 'cosine'
    truncate_dim: int | None = None
    include_prompt: bool = True

    def with_prompt(self, name: str | None) -> Self:
        """With the prompt of this name before every text; None: with the default one.

        As sentence-transformers has it, a model without prompts of these names has empty ones for
        `query` and `document`.

        Raises:
          InputError: there is no such prompt.
        """
        if name is None:
            self._note_prompts()
            return self
        known = dict.fromkeys(_USUAL_PROMPTS, '') | dict(self.prompts)
        if not isinstance(name, str) or name not in known:
            raise InputError(f"prompt={name!r:.60} is unknown: the model has {', '.join(known)}")
        return self._replace(prompt=known[name])

    def _note_prompts(self) -> None:
        """Notes the prompts that are not applied."""
        others = [f'{name}={prompt!r:.60}' for name, prompt in self.prompts.items()
                  if prompt and prompt != self.prompt]
        if others:
            verb = 'is' if len(others) == 1 else 'are'
            tell_once(f"note: {self.encoder}: of its prompts {', '.join(others)} {verb} not "
                      'applied: name the one that the texts are for (--prompt=NAME, prompt=NAME)')

    def pooling(self) -> tuple[str, bool]:
        """(pool, normalize), of the modules if there are any.

        Raises:
          InputError: there is a module or a pooling that is not supported.
        """
        if not self.modules:
            return self.pool, self.normalize
        pool = ''
        normalize = False
        for name, folder in self.modules:
            if name == 'Pooling':
                pool = _read_pool(folder)
                normalize = False
            elif name == 'Normalize':
                _check_normalize(folder)
                normalize = bool(pool)  # before pooling there is no vector
            elif name not in _NO_CHANGE:
                raise InputError(f'{folder}: a module {name} behind the encoder cannot be '
                                 f'computed: {_HOW_TO_NAME_POOL}, and normalize, to go without it')
        return pool or 'mean', normalize

    def pools_prompt(self) -> bool:
        """Whether the tokens of the prompt, and [CLS] with them, are pooled like the others."""
        for name, folder in self.modules:
            file = folder / 'config.json'
            if name != 'Pooling' or not exists(file):
                continue
            if read_fields(file, _POOLING, _REMEDY).get('include_prompt') is False:
                return False
        return self.include_prompt

    def inference(self) -> dict[str, Any]:
        """These settings, as far as `Weights.inference` has them.

        Why a pooling cannot be computed is `other_pool`.
        """
        found: dict[str, Any] = {}
        if self.max_length is not None:
            found['max_seq_length'] = self.max_length
        if 'Pooling' not in [name for name, _ in self.modules]:  # it makes no vectors
            return found
        try:
            found['pool'], found['normalize'] = self.pooling()
        except InputError as error:
            found['other_pool'] = str(error).partition(f': {_HOW_TO_NAME_POOL}')[0]
        if self.lowercase:
            found['do_lower_case'] = True
        if not self.pools_prompt():
            found['include_prompt'] = False
        if self.prompts:
            found['prompts'] = dict(self.prompts)
        if self.default_prompt is not None:
            found['default_prompt'] = self.default_prompt
        if self.similarity != 'cosine':
            found['similarity'] = self.similarity
        if self.truncate_dim is not None:
            found['truncate_dim'] = self.truncate_dim
        return found

    def activation(self) -> str:
        """The activation of a cross-encoder's value, one of ACTIVATIONS; '' if there is none."""
        named = self.named_activation()
        name = named.rpartition('.')[2]
        if name and name not in ACTIVATIONS:
            tell(f'note: {self.encoder}: the activation {named} is unknown here, so values are '
                 f"those before it ({', '.join(ACTIVATIONS)} are applied)")
            return ''
        return name

    def named_activation(self) -> str:
        """The full name of a cross-encoder's activation; '' without one."""
        names = []
        for file in (self.encoder / _CONFIG, self.encoder / 'config.json'):  # the newer's first
            if not exists(file):
                continue
            fields = read_fields(file, _MODEL, _REMEDY)
            section = fields.get('sentence_transformers') or {}
            names.append(fields.get('activation_fn'))
            names.append(section.get('activation_fn'))
            names.append(fields.get('sbert_ce_default_activation_function'))
        return str(next(filter(None, names), ''))

    def prepared(self, texts: Sequence[str]) -> list[str]:
        """Texts that belong together, as they go to the tokenizer."""
        texts = [self.prompt + texts[0], *texts[1:]]
        if not self.lowercase:
            return texts
        # Letter by letter, as theirs: a sigma is the same at the end of a word.
        return [''.join(map(str.lower, text)) for text in texts]


def _read_pool(folder: Path) -> str:
    """How a module of pooling pools, one of POOLS.

    Raises:
      InputError: in another way.
    """
    file = folder / 'config.json'
    config = read_fields(file, _POOLING, f'{_REMEDY}, or {_HOW_TO_NAME_POOL}')
    modes = []  # those that are on
    others = {}
    for name, value in config.items():
        if not name.startswith(_MODE_PREFIX):
            others[name] = value
        elif value:  # old files may have 1 for true
            modes.append(name.removeprefix(_MODE_PREFIX))
    newer = config.get('pooling_mode')  # of newer versions: a mode, or a list of several
    if newer is not None:
        modes = newer if isinstance(newer, list) else [newer]
    pool = ' and '.join(map(str, modes)) or 'mean'
    pool = pool.removesuffix('_tokens').removesuffix('_token')
    if pool not in POOLS:
        raise InputError(
            f'{folder} pools by {pool:.100}, which cannot be computed: {_HOW_TO_NAME_POOL}')
    _note_not_applied(file, others, _OF_POOLING)
    return pool


def _check_normalize(folder: Path) -> None:
    """Refuses a module that scales something else than the vector of a text."""
    file = folder / 'config.json'
    if not exists(file):
        return
    for name, value in read_fields(file, _NORMALIZE, _REMEDY).items():
        if name in _NORMALIZE and value not in (None, 'sentence_embedding'):
            raise InputError(f'{file}: {name}={value!r:.60} cannot be computed: '
                             f'{_HOW_TO_NAME_POOL}, and normalize, to go without it')


def read_sentences(folder: Path) -> Sentences:
    """The settings of sentence-transformers in a model's folder.

    Raises:
      InputError: a file is damaged, or a setting has a value that it cannot have.
    """
    file = folder / 'modules.json'
    if not exists(file):
        return Sentences(folder)
    encoder = folder
    modules: list[tuple[str, Path]] = []
    for module in read_fields(file, _MODULES, _REMEDY):
        kind = module.get('type') or ''
        path = folder / (module.get('path') or '')
        if not modules:
            encoder = path  # old models have it in a folder of its own
            _check_first(file, kind)
        if not in_bucket(path):
            path = as_path(os.path.abspath(path))  # read later, perhaps from another folder
        if not kind.startswith('sentence_transformers.'):
            tell_once(f'note: {file}: the module {kind} is of other code, which is not run: it is '
                      'read as that of sentence-transformers')
        modules.append((kind.rpartition('.')[2], path))
    max_length, lowercase = _read_encoder(encoder)
    sentences = Sentences(encoder, tuple(modules), max_length, lowercase=lowercase)
    return _with_model_settings(sentences, folder / _CONFIG)


def _check_first(file: Path, kind: str) -> None:
    """Refuses a first module that is no encoder."""
    name = kind.rpartition('.')[2]
    if kind.startswith('sentence_transformers.') and name != 'Transformer':
        remedy = 'name the folder of an encoder'
        if name in ('Router', 'Asym'):
            remedy = 'name the folder of one of its models, for queries or for documents'
        raise InputError(f'{file}: its first module is a {name}, which cannot be read: {remedy}')


def _read_encoder(folder: Path) -> tuple[int | None, bool]:
    """`max_seq_length` and `do_lower_case`, from sentence_bert_config.json or its older names."""
    file = _encoder_file(folder)
    if file is None:
        return None, False
    config = read_fields(file, _ENCODER, _REMEDY)
    reads_pairs = config.get('transformer_task') == _OF_PAIR_ENCODER['transformer_task']
    _note_not_applied(file, config, _OF_PAIR_ENCODER if reads_pairs else _OF_ENCODER)
    return config.get('max_seq_length'), bool(config.get('do_lower_case'))


def _encoder_file(folder: Path) -> Path | None:
    """sentence_bert_config.json, or sentence_roberta_config.json, ... of older versions."""
    for path in children(folder):
        if re.fullmatch('sentence_.*_config.json', path.name) and exists(path):
            return path
    return None


def _with_model_settings(sentences: Sentences, file: Path) -> Sentences:
    """With the prompts and the other settings of config_sentence_transformers.json."""
    if not exists(file):
        return sentences
    config = read_fields(file, _MODEL, _REMEDY)
    is_cross_encoder = config.get('model_type') == _OF_CROSS_ENCODER['model_type']
    _note_not_applied(file, config, _OF_CROSS_ENCODER if is_cross_encoder else _OF_MODEL)
    prompts = {name: prompt or '' for name, prompt in (config.get('prompts') or {}).items()}
    default = config.get('default_prompt_name')
    if default is not None and default not in prompts:
        raise InputError(f'{file}: default_prompt_name={default!r} is not among its prompts '
                         f"({', '.join(prompts)}): name one of them, or null for none")
    if is_cross_encoder and prompts.get(default):
        raise InputError(
            f'{file}: default_prompt_name={default!r} cannot be applied to pairs: make it null, '
            f'and write {prompts[default]!r:.60} before each query yourself')
    return sentences._replace(
        prompt=prompts.get(default, ''), prompts=prompts, default_prompt=default,
        similarity=config.get('similarity_fn_name') or 'cosine',
        truncate_dim=config.get('truncate_dim'))


def _note_not_applied(file: Path, fields: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Notes the settings of a file that are not applied, a line each."""
    for setting in not_applied(fields, known):
        tell_once(f'note: {file}: {setting} is not applied')
