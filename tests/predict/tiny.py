"""Tiny models for the tests of prediction."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from bert_jax.config.bert_config import BertConfig
from bert_jax.foreign import load_weights
from bert_jax.heads import HEADS
from bert_jax.heads.base import Head
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.layers import ModelConfig
from bert_jax.predict.model import Model
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.vocab import SPECIAL_TOKENS
from bert_jax.text.vocab_files import write_vocab
from bert_jax.weights.parameters import Weights, from_tree

# Folders of transformers' models with their recorded outputs; 40 tokens, 10 positions.
RECORDED = Path(__file__).parent.parent / 'fixtures' / 'huggingface'
WORDS = ('red', 'green', 'blue', 'cat', 'dog', 'bird', 'sees', 'likes', 'the', 'a', '##s', '##ed',
         '.', ',', '?')
VOCAB = (*SPECIAL_TOKENS, *WORDS)
SIZES = vars(BertConfig(
    vocab_size=len(VOCAB), num_layers=2, hidden_size=32, num_heads=4, intermediate_size=64,
    max_position_embeddings=48, initializer_range=0.2,
))
# Rows of the table of random models, whatever their tokenizer, so that they share what is compiled.
NUM_ROWS = 512


@functools.cache
def recorded(name: str) -> tuple[Model, dict[str, np.ndarray]]:
    """(model, inputs and outputs that transformers recorded) of a folder in `RECORDED`."""
    model = Model(load_weights(RECORDED / name), devices=jax.devices()[:1])
    return model, dict(np.load(RECORDED / name / 'recorded.npz'))


def pretraining_weights(
    folder: Path, tokens: Sequence[str] = VOCAB, file_name: str = 'vocab.txt', num_layers: int = 2
) -> Weights:
    """Random weights with both pre-training heads; every parameter is nontrivial."""
    vocab_file = folder / file_name
    write_vocab(vocab_file, tokens)
    sizes = SIZES | {'vocab_size': len(tokens), 'num_layers': num_layers}
    config = ModelConfig(**sizes)
    shapes = nn.meta.unbox(jax.eval_shape(Pretraining(config).init, jax.random.key(0)))
    rng = np.random.default_rng(0)
    tree = jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)
    return Weights(
        params=from_tree(tree, len(tokens)), model=sizes, head='pretraining', labels=(),
        vocab_file=vocab_file, lowercase=True, unused=(), source='a tiny model',
    )


def random_model(vocab_file: Path, head: str, labels: tuple[str, ...] = ()) -> Model:
    """A model with random weights, a head and a cased tokenizer of any kind; 64 positions."""
    num_tokens = len(load_tokenizer(vocab_file, lowercase=False).vocab)
    sizes = {**SIZES, 'num_layers': 1, 'max_position_embeddings': 64, 'vocab_size': NUM_ROWS}
    made = HEADS[head].of_model(ModelConfig(**sizes), len(labels) or 1, {})
    rng = np.random.default_rng(0)
    tree = jax.tree.map(
        lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), _shapes_of(made))
    params = from_tree(tree, NUM_ROWS)
    if head == 'pretraining':  # rows without a token are not likely
        params['cls/predictions/output_bias'][num_tokens:] = -100.0
    weights = Weights(
        params=params, model=sizes, head=head, labels=labels,
        vocab_file=vocab_file, lowercase=False, unused=(), source='a tiny model')
    return Model(weights, devices=jax.devices()[:1])


@functools.cache
def _shapes_of(head: Head) -> Any:
    """The shapes of a head's parameters, which take a tenth of a second to find out."""
    return nn.meta.unbox(jax.eval_shape(head.init, jax.random.key(0)))


def random_texts(num: int, longest: int = 30, seed: int = 0) -> list[str]:
    """Texts of 1 to `longest` random words of the vocabulary."""
    rng = np.random.default_rng(seed)
    words = [word for word in WORDS if not word.startswith('##')]
    return [' '.join(rng.choice(words, int(n))) for n in rng.integers(1, longest + 1, num)]
