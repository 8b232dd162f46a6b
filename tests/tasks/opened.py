"""Opens tasks on small files of a test's folder, with a vocabulary of a few words."""

import json

from bert_jax.config import default_config
from tests.opening import open_task

WORDS = ['the', 'leader', 'was', 'john', 'smith', 'born', 'in', 'antwerp', 'who', 'when']
TAGGED = """-DOCSTART- -X- -X- O

john NNP B-NP B-PER
smith NNP I-NP I-PER
was VBD B-VP O
born VBN I-VP O
in IN B-PP O
antwerp NNP B-NP B-LOC

the DT B-NP O
leader NN I-NP O

"""


def config_of(task, source, tmp_path, own=None, **data):
    """A task's config; `own` sets fields of its section, `data` those of `config.data`.

    `eval_source=True` scores the task on its training data. The vocabulary is that of the fixture
    `vocabulary`.
    """
    if data.get('eval_source') is True:
        data['eval_source'] = str(source)
    config = default_config(task)
    config.data.source = str(source)
    config.data.tfds_dir = str(tmp_path / 'tfds')
    config.data.vocab_file = str(tmp_path / 'vocab.txt')
    config.data.lowercase = True
    config.data.max_seq_length = 32
    config.data.update(data)
    if own:
        config[task].update(own)
    return config


def opened(task, source, tmp_path, **fields):
    """The task of `config_of`, for training."""
    return open_task(config_of(task, source, tmp_path, **fields))


def parquet(path, features=(), **columns):
    """Writes a Parquet file as Hugging Face's `datasets` does; returns its path as a string.

    `features` are what is recorded of columns.
    """
    import pyarrow
    import pyarrow.parquet

    info = {'info': {'features': dict(features)}}
    table = pyarrow.table(columns).replace_schema_metadata({'huggingface': json.dumps(info)})
    pyarrow.parquet.write_table(table, path)
    return str(path)
