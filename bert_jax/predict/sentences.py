"""How sentence-transformers makes vectors, from the files that it keeps beside a model's weights.

Every setting in these files is read here, known to change no vector, or named as not applied.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.runtime.errors import InputError, tell_once
from bert_jax.runtime.files import Path, children, read_json
from bert_jax.text.settings import ANY, not_applied

POOLS = ('mean', 'cls', 'max')

_CONFIG = 'config_sentence_transformers.json'
# Settings that are read here, or change no vector at these values (`ANY`: at any).
_OF_ENCODER: Mapping[str, Any] = {
    'max_seq_length': ANY, 'do_lower_case': ANY, 'transformer_task': 'feature-extraction',
    'module_output_name': 'token_embeddings', 'unpad_inputs': ANY,
    'modality_config': {'text': {'method': 'forward', 'method_output_name': 'last_hidden_state'}}}
_OF_MODEL: Mapping[str, Any] = {
    'prompts': ANY, 'default_prompt_name': ANY, '__version__': ANY, 'similarity_fn_name': ANY,
    'model_type': 'SentenceTransformer'}
_OF_POOLING: Mapping[str, Any] = {
    'include_prompt': ANY, 'word_embedding_dimension': ANY, 'embedding_dimension': ANY,
    'pooling_mode': ANY}
_MODES = 'pooling_mode_'
# Modules that leave vectors as they are when nothing is trained, and that of the encoder.
_NO_CHANGE = ('', 'Transformer', 'Dropout')


class Sentences(NamedTuple):
    """What stands beside a model's weights; without these files, the defaults.

    Attributes:
      encoder: the folder with the weights.
      modules: names and folders of the modules, encoder first.
      max_length: the most tokens of a sequence; None: not said.
      prompt: stands before every text.
      lowercase: whether a text is lower-cased before it goes to the tokenizer.
    """

    encoder: Path
    modules: tuple[tuple[str, Path], ...] = ()
    max_length: int | None = None
    prompt: str = ''
    lowercase: bool = False

    def pooling(self) -> tuple[str, bool]:
        """(pool, normalize); without modules ('mean', False).

        Raises:
          InputError: there is a module or a pooling that is not supported.
        """
        pool, normalize = 'mean', False
        remedy = f"name pool, one of {', '.join(POOLS)}"
        for name, folder in self.modules:
            if name == 'Pooling':
                file = folder / 'config.json'
                config = read_json(file, f'copy it again, or {remedy}')
                on = [name.removeprefix(_MODES) for name, value in config.items()
                      if name.startswith(_MODES) and value is True]
                # Newer versions have `pooling_mode` instead.
                pool = str(config.get('pooling_mode') or ' and '.join(on))
                pool = pool.removesuffix('_tokens').removesuffix('_token')
                if pool not in POOLS:
                    raise InputError(f"{folder} pools by {pool or 'nothing'}, which cannot be "
                                     f'computed: {remedy}')
                _say_rest(file, {name: value for name, value in config.items()
                                 if not name.startswith(_MODES)}, _OF_POOLING)
            elif name == 'Normalize':
                normalize = True
            elif name not in _NO_CHANGE:
                raise InputError(f'{folder}: a module {name} behind the encoder cannot be '
                                 f'computed: {remedy}, and normalize, to go without it')
        return pool, normalize

    def pools_prompt(self) -> bool:
        """Whether the tokens of the prompt, and [CLS] with them, are pooled like the others."""
        files = [folder / 'config.json' for name, folder in self.modules if name == 'Pooling']
        return all(read_json(file, 'copy it again').get('include_prompt') is not False
                   for file in files if file.exists())

    def prepared(self, texts: Sequence[str]) -> list[str]:
        """Texts that belong together, as they go to the tokenizer."""
        texts = [self.prompt + texts[0], *texts[1:]]
        return [text.lower() for text in texts] if self.lowercase else texts


def read_sentences(folder: Path) -> Sentences:
    """The settings of sentence-transformers in a model's folder.

    Raises:
      InputError: a file is damaged, or a setting has a value that it cannot have.
    """
    file = folder / 'modules.json'
    if not file.exists():
        return Sentences(folder)
    modules = []
    for module in read_json(file, 'copy it again', list):
        kind, path = str(module.get('type', '')), folder / str(module.get('path', ''))
        if not kind.startswith('sentence_transformers.'):
            tell_once(f'note: {file}: the module {kind} is of other code, which is not run: it is '
                      'read as that of sentence-transformers')
        modules.append((kind.rpartition('.')[2], path))
    encoder = modules[0][1] if modules else folder  # old models have it in a folder of its own
    limit, lowercase = _read_encoder(encoder)
    return Sentences(encoder, tuple(modules), limit, _read_prompt(folder / _CONFIG), lowercase)


def _read_encoder(folder: Path) -> tuple[int | None, bool]:
    """`max_seq_length` and `do_lower_case`, from sentence_bert_config.json or its older names."""
    file = next((path for path in children(folder) if path.name.startswith('sentence_')
                 and path.name.endswith('_config.json')), None)
    if file is None:
        return None, False
    config = read_json(file, 'copy it again')
    _say_rest(file, config, _OF_ENCODER)
    limit, lowercase = config.get('max_seq_length'), config.get('do_lower_case')
    for name, value, kind in (('max_seq_length', limit, int), ('do_lower_case', lowercase, bool)):
        if value is not None and not isinstance(value, kind):
            raise InputError(f'{file}: {name}={value!r} is not a value that it can have')
    return limit, bool(lowercase)


def _read_prompt(file: Path) -> str:
    """The default prompt; the others are noted, since they stand before texts of one kind only."""
    if not file.exists():
        return ''
    config = read_json(file, 'copy it again')
    _say_rest(file, config, _OF_MODEL)
    prompts, default = config.get('prompts') or {}, config.get('default_prompt_name')
    if not isinstance(prompts, dict) or not all(isinstance(x, str) for x in prompts.values()):
        raise InputError(f'{file}: prompts={prompts!r:.60} must map names to texts')
    if default is not None and default not in prompts:
        raise InputError(f'{file}: default_prompt_name={default!r} is not among its prompts '
                         f"({', '.join(prompts)}): name one of them, or null for none")
    if others := [f'{name}={prompt!r:.60}' for name, prompt in prompts.items()
                  if prompt and name != default]:
        tell_once(f"note: {file}: of its prompts {', '.join(others)} "
                  f'{"is" if len(others) == 1 else "are"} not applied: write it before the texts '
                  'that it is for')
    return '' if default is None else prompts[default]


def _say_rest(file: Path, fields: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for setting in not_applied(fields, known):
        tell_once(f'note: {file}: {setting} is not applied')
