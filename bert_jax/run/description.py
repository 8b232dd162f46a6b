"""The description of a run: `config.json`, with its digest, and the vocabulary beside it.

A run whose head or task a config file defines also has a copy of that file, `config_file.py`, whose
name and digest are in config.json. It is there to be read by people: no command runs it.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax.config.fields import flat_fields
from bert_jax.run.layout import DESCRIPTION, run_of
from bert_jax.runtime import checksum, files
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, read_fields
from bert_jax.runtime.schema import NUMBER, TEXT, TRUTH, ListOf, MapOf, Schema, check_fields, count
from bert_jax.text.kinds import keep_tokenizer

_COUNT = count(10**15, least=0)
_ANY: Mapping[str, Any] = {}  # an object
# The fields of config.json that are read without the checks of a config on the command line.
_SCHEMA: Mapping[str, Schema] = {
    'task': TEXT,
    'metric': TEXT,
    'head': TEXT,
    'labels': ListOf(TEXT),
    'vocabulary': TEXT,
    'init_checkpoint': TEXT,
    'config_file': {'name': TEXT, 'digest': TEXT},
    'model': {'name': TEXT, 'features': TEXT},
    'data': {
        'lowercase': TRUTH, 'next_sentence': TRUTH, 'text': TEXT, 'text_pair': TEXT,
        'choices': TEXT},
    'adapter': {
        'kind': TEXT, 'rank': _COUNT, 'alpha': NUMBER, 'dropout': NUMBER, 'targets': TEXT},
    'train': {'steps': _COUNT},
    'optimizer': {'name': TEXT},
    'phases': ListOf({
        'steps': _COUNT, 'batch_size': _COUNT, 'packed_rows': _COUNT,
        'max_seq_length': count(2**24)}),
    'inference': _ANY,
    'identity': _ANY,
    'guessing': MapOf(NUMBER),
    'made': {'commit': TEXT, 'code': TEXT, 'versions': MapOf(TEXT), 'before': ListOf(_ANY)},
    'step_flops': ListOf(NUMBER),
    'parameters': _COUNT,
}
REMEDY = 'put the file back as the run wrote it'
OWN_CODE = 'config_file'  # the section of config.json, and the stem of the copy


class OwnFile(NamedTuple):
    """The file outside the package that defines a run's head or its task."""

    path: Path
    content: bytes

    def record(self) -> dict[str, str]:
        """Its entry in config.json."""
        return {'name': self.path.name, 'digest': checksum.digest(self.content)}


def own_file_of(fields: Mapping[str, Any]) -> str:
    """The name of the file that defines a run's head or task; '' where the package does.

    Args:
      fields: of the run's config.json, by dotted name.
    """
    return str(fields.get(f'{OWN_CODE}.name') or '')


def differs_from_copy(fields: Mapping[str, Any], file: OwnFile) -> bool:
    """Whether a run was trained with another content of its config file."""
    return bool(fields.get(f'{OWN_CODE}.digest') != file.record()['digest'])


def read_config(workdir: Path) -> dict[str, Any]:
    """The fields of `config.json`.

    Raises:
      InputError: it is missing, is no JSON object, was changed since the run wrote it, holds a
        value that it cannot have, or is of a run whose parameters have another layout.
    """
    path = workdir / DESCRIPTION
    content = read_fields(
        path, {}, 'put it back, or name a run directory: it holds config.json and checkpoints/')
    config = checksum.check_digest(content, path)
    check_fields(config, _SCHEMA, path, REMEDY)
    model = config.get('model') or {}
    if model.get('scan_layers'):
        raise InputError(f'{path}: model.scan_layers=True is no longer read: convert the run to a '
                         'Hugging Face folder with the version of bert_jax that wrote it')
    return config


def describe_run(
    workdir: Path, fields: dict[str, Any], vocab_file: Path | None,
    own_file: OwnFile | None = None,
) -> None:
    """Writes the vocabulary, and `config.json` with its digest, into a run directory.

    Args:
      workdir: the run directory.
      fields: of config.json.
      vocab_file: of the run, if there is text.
      own_file: defines the head or the task, if the package does not; it is copied.
    """
    if own_file is not None:
        fields = fields | {OWN_CODE: own_file.record()}
    if vocab_file is not None:
        content = keep_tokenizer(vocab_file, workdir)
        fields = fields | {'vocabulary': checksum.digest(content)}
    text = json.dumps(checksum.with_digest(fields), indent=2) + '\n'
    files.write_whole(workdir / DESCRIPTION, text)
    if own_file is not None:
        files.write_whole(workdir / f'{OWN_CODE}.py', own_file.content)


def read_run_fields(workdir: Path) -> dict[str, Any]:
    """The fields of a run's `config.json`, by dotted name; `workdir` may be its checkpoint."""
    return flat_fields(read_config(run_of(workdir)))
