"""Fine-tuning from a folder of each family: resumed, predicted from, and written as that family."""

import dataclasses
import json
import random
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import linen as nn

from bert_jax import convert
from bert_jax.config.bert_config import BertConfig
from bert_jax.foreign.huggingface import write_huggingface
from bert_jax.heads.pretraining import Pretraining
from bert_jax.loading import load
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.errors import Stopped
from bert_jax.text.kinds import load_tokenizer
from bert_jax.weights.parameters import Weights, from_tree
from tests.e2e.test_downstream_runs import UNPACKED, run
from tests.shared_steps import shared_steps
from tests.tiny_runs import one_device, sentence
from tests.tokenizer_files import write_tokenizer, write_tokenizer_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('kernels_of_numpy')]


@dataclasses.dataclass(frozen=True)
class Family:
    """A family's model_type, the kind of its tokenizer, and its options that are not BERT's."""

    model_type: str
    tokenizer: str
    options: dict[str, Any]


FAMILIES = {
    'roberta': Family('roberta', 'roberta', {
        'first_position': 2, 'type_vocab_size': 1, 'pooler_dropout': 0.1}),
    'xlm-roberta': Family('roberta', 'xlmr', {
        'first_position': 2, 'type_vocab_size': 1, 'pooler_dropout': 0.1}),
    'distilbert': Family('distilbert', 'wordpiece', {'type_vocab_size': 0, 'pooler_act': 'relu'}),
    'electra': Family('electra', 'wordpiece', {
        'pooler_act': 'gelu_erf', 'embedding_size': 16, 'pooler_dropout': 0.1}),
    'modernbert': Family('modernbert', 'modernbert', {
        'num_layers': 2,  # the second attends to neighbours alone
        'type_vocab_size': 0, 'positions': 'rotary', 'pre_norm': True, 'gated': True,
        'biases': False, 'pooler_act': 'gelu_erf', 'pooler_norm': True, 'pools_tokens': True,
        'local_attention': 8, 'layer_norm_eps': 1e-5}),
}


def write_folder(family: Family, folder: Path) -> Path:
    """Writes the folder of a random masked LM with its tokenizer, and returns its path."""
    if family.model_type == 'roberta':  # both models are the same but for their tokenizers
        vocab_file = write_tokenizer_of(420, family.tokenizer, folder / 'tokenizer')
    else:
        vocab_file = write_tokenizer(family.tokenizer, folder / 'tokenizer')
    vocab_size = len(load_tokenizer(vocab_file, lowercase=False).vocab)
    model = vars(BertConfig(
        vocab_size=vocab_size, hidden_size=32, num_heads=2, intermediate_size=32,
        max_position_embeddings=64, hidden_act='gelu_erf', **{'num_layers': 1} | family.options))
    head = Pretraining(ModelConfig(**model))
    shapes = nn.meta.unbox(jax.eval_shape(head.init, jax.random.key(0)))
    rng = np.random.default_rng(0)
    tree = jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)
    params = {
        name: x for name, x in from_tree(tree, vocab_size).items()
        if not name.startswith(('bert/pooler', 'cls/seq_relationship'))}
    write_huggingface(folder / 'hf', Weights(
        params=params, model=model, head='pretraining', labels=(), vocab_file=vocab_file,
        lowercase=False, unused=(), source='a tiny model'))
    return folder / 'hf'


@pytest.mark.parametrize('name', FAMILIES)
def test_pairs_are_classified_resumed_and_written(name, tmp_path):
    family = FAMILIES[name]
    start = write_folder(family, tmp_path)
    rng = random.Random(0)
    rows = [(sentence(rng), sentence(rng), 'xy'[i % 2]) for i in range(40)]
    source = tmp_path / 'own.csv'
    source.write_text('a,b,label\n' + ''.join([','.join(row) + '\n' for row in rows]))

    def tune(stop_at=None):
        return run(
            'classification.py', f'--config.init_checkpoint={start}', *UNPACKED,
            '--config.train.steps=4', '--config.data.text=a',
            '--config.data.text_pair=b', f'--config.data.source={source}',
            f'--config.data.eval_source={source}', f'--config.data.dir={tmp_path}/cache',
            workdir=tmp_path / 'run', stop_at=stop_at)

    whole = tune().result
    shutil.move(tmp_path / 'run', tmp_path / 'whole')
    with pytest.raises(Stopped):
        tune(stop_at=2)
    shutil.rmtree(start)  # the run has all of it
    assert tune().result == whole
    convert.main([str(tmp_path / 'run'), str(tmp_path / 'out'), '--to', 'huggingface'])
    config = json.loads((tmp_path / 'out' / 'config.json').read_text())
    assert config['model_type'] == family.model_type
    pairs = [row[:2] for row in rows]
    with one_device(), shared_steps():
        found = load(tmp_path / 'run').classify(pairs)
        assert load(tmp_path / 'out').classify(pairs) == found
    assert len({result['probability'] for result in found}) > 20  # it depends on the texts
