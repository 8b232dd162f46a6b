"""From a config to a downstream task with its data.

Data is a folder in the benchmark's own layout (`data.source`), or tensorflow-datasets by name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from bert_jax.data import conll, glue, squad
from bert_jax.data.pairs import Encode
from bert_jax.errors import InputError
from bert_jax.files import as_path, in_bucket
from bert_jax.process import loading_tensorflow
from bert_jax.tasks.base import Downstream
from bert_jax.tasks.conll import open_conll
from bert_jax.tasks.glue import open_glue
from bert_jax.tasks.squad import open_squad
from bert_jax.tasks.swag import open_swag
from bert_jax.text.load import Tokenizer

GLUE = tuple(name for name in glue.GLUE_TASKS if name != 'ax')  # that has no training set
DOWNSTREAM_TASKS = (*GLUE, 'squad_v1', 'squad_v2', 'swag', 'conll')


def open_downstream(config: ConfigDict, tokenizer: Tokenizer, encode: Encode) -> Downstream:
    """Reads and tokenizes the data of a downstream task.

    Raises:
      InputError: whatever is wrong with the data.
    """
    d = config.data
    special = {'cls_id': tokenizer.vocab.cls_id, 'sep_id': tokenizer.vocab.sep_id}
    if config.task in GLUE:
        return open_glue(
            config.task, functools.partial(_read_glue, config), encode,
            max_length=d.max_seq_length, **special,
        )
    if config.task == 'swag':
        return open_swag(
            _source(config, 'a folder of SWAG files, or one file in its style'), encode,
            max_length=d.max_seq_length, max_malformed=d.max_malformed, **special,
        )
    if config.task == 'conll':
        return open_conll(
            functools.partial(_read_conll, config), encode, features=config.model.features,
            max_length=d.max_seq_length, document_context=d.document_context,
            unk_id=tokenizer.vocab.unk_id, **special,
        )
    version = config.task.removeprefix('squad_')
    return open_squad(
        version, functools.partial(_read_squad, config, version), encode, vocab=tokenizer.vocab,
        lowercase=d.lowercase, max_length=d.max_seq_length, doc_stride=d.doc_stride,
        max_query_length=d.max_query_length,
    )


def _read_conll(config: ConfigDict, split: str) -> conll.ConllExamples | None:
    """A split from the folder `data.source`; None where it has no test split."""
    if config.data.source == 'tfds:conll2003':
        if config.data.document_context:
            raise InputError(
                "config.data.source='tfds:conll2003' has lost the documents; name the folder of "
                'the original files, or use configs/conll.py:sentences'
            )
        return conll.from_tfds(split, _tfds_records(config, 'conll2003', split))
    folder = _source(config, 'the folder with eng.train and eng.testa')
    if split == 'test' and not conll.find_conll(folder, split):
        return None
    return conll.read_conll(folder, split, max_malformed=config.data.max_malformed)


def _read_squad(config: ConfigDict, version: str, training: bool) -> squad.SquadExamples:
    """The questions to train on, or those to score."""
    kind: Any = {
        'version': version, 'training': training, 'max_skipped': config.data.max_malformed
    }
    if config.data.source == 'tfds:squad' and (training or not config.data.eval_source):
        records = _tfds_records(config, *squad.tfds_split(version, training))
        return squad.from_tfds(records, **kind)
    return squad.read_squad(_squad_files(config, version, training), **kind)


def _tfds_records(config: ConfigDict, name: str, split: str) -> Iterator[dict[str, Any]]:
    with loading_tensorflow(f'tfds:{name}'):
        from bert_jax.data.tfds_data import tfds_records

    return tfds_records(name, split, config.data.tfds_dir)


def _squad_files(config: ConfigDict, version: str, training: bool) -> list[str]:
    """Training files or the file to score, from `data.source` and `data.eval_source`."""
    number = {'v1': '1.1', 'v2': '2.0'}[version]
    source, eval_source = config.data.source, config.data.eval_source
    sources = [source] if isinstance(source, str) else list(source)
    meaning = (
        f'the folder with train-v{number}.json and dev-v{number}.json, a training file (or a list '
        "of them) with config.data.eval_source, or 'tfds:squad'"
    )
    if not training and eval_source:
        return [str(as_path(eval_source))]
    if not sources or not all(
        isinstance(s, str) and s and (':' not in s or in_bucket(s)) for s in sources
    ):
        raise InputError(
            f'config.data.source={source!r}: config.task={config.task!r} needs {meaning}'
        )
    paths = [as_path(s) for s in sources]
    if len(paths) == 1 and paths[0].is_dir():
        stem = f"{'train' if training else 'dev'}-v{number}.json"
        for path in (paths[0] / stem, paths[0] / f'{stem}.gz'):
            if path.exists():
                return [str(path)]
        raise InputError(f'{paths[0]} has no {stem}, plain or .gz: name {meaning}')
    if not eval_source:
        raise InputError('config.data.eval_source is empty: name the file to evaluate on')
    return [str(path) for path in paths]


def _read_glue(config: ConfigDict, name: str, split: str) -> glue.GlueExamples | None:
    """A split from the folder `data.source`; None where it has no such file."""
    if config.data.source == 'tfds:glue':
        records = _tfds_records(config, *glue.tfds_split(name, split))
        return glue.from_tfds(name, split, records)
    folder = _source(
        config, f'the folder of the benchmark, with {glue.glue_task(name).folder}/ in it'
    )
    needed = name == config.task and split == 'train'  # is read in any case, or refused by name
    if not needed and not glue.glue_files(name, folder, split):
        return None
    return glue.read_glue(name, folder, split, max_malformed=config.data.max_malformed)


def _source(config: ConfigDict, meaning: str) -> str:
    """`data.source`, which has to be one path.

    Raises:
      InputError: it is something else, or pre-training's default.
    """
    source = config.data.source
    if not isinstance(source, str) or not source or source.startswith('docs:'):
        raise InputError(
            f'config.data.source={source!r}: config.task={config.task!r} needs {meaning}'
        )
    return str(as_path(source))
