"""A peer of the step benchmark: KerasHub's BERT on its jax backend.

    KERAS_VENV/bin/python benchmarks/kerashub_pretrain.py --dtype=bfloat16

Needs `pip install keras-hub 'jax[cuda12]' tensorflow-cpu` in an environment of its own. KerasHub
has no next-sentence head, so the model is put together here: the backbone, its masked-LM head at
the masked positions only, and a dense layer on the pooled vector, with dropout, clipping and AdamW
(`mixed_bfloat16` on request), trained by `train_on_batch`. It prints one JSON line.
"""

import argparse
import os

os.environ.setdefault('KERAS_BACKEND', 'jax')

import keras
import keras_hub
import numpy as np
from peer import measure, parse_arguments


def make_model(args: argparse.Namespace) -> keras.Model:
    """BERT with both heads of pre-training."""
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=args.vocab_size, num_layers=args.layers, num_heads=args.heads,
        hidden_dim=args.hidden, intermediate_dim=4 * args.hidden, dropout=0.1,
        max_sequence_length=max(512, args.seq),
    )
    positions = keras.Input((args.predictions,), dtype='int32', name='positions')
    outputs = backbone.output
    words = keras_hub.layers.MaskedLMHead(
        vocabulary_size=args.vocab_size, token_embedding=backbone.token_embedding,
        intermediate_activation='gelu', name='words',
    )(outputs['sequence_output'], positions)
    following = keras.layers.Dense(2, name='following')(outputs['pooled_output'])
    return keras.Model({**backbone.input, 'positions': positions}, [words, following])


def make_batch(args: argparse.Namespace) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """(Inputs, labels): random full-length rows with `predictions` masked positions each."""
    rng = np.random.default_rng(0)
    shape = (args.batch_size, args.seq)
    ids = rng.integers(0, args.vocab_size, shape).astype(np.int32)
    positions = np.argsort(rng.random(shape))[:, : args.predictions].astype(np.int32)
    segments = np.tile(np.arange(args.seq) > args.seq // 2, (args.batch_size, 1))
    inputs = {
        'token_ids': ids, 'padding_mask': np.ones(shape, np.int32),
        'segment_ids': segments.astype(np.int32), 'positions': positions,
    }
    labels = [np.take_along_axis(ids, positions, 1), rng.integers(0, 2, args.batch_size)]
    return inputs, labels


def main() -> None:
    args = parse_arguments(__doc__)
    if args.dtype == 'bfloat16':
        keras.mixed_precision.set_global_policy('mixed_bfloat16')
    keras.utils.set_random_seed(0)
    model = make_model(args)
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.AdamW(1e-4, weight_decay=0.01, global_clipnorm=1.0), [entropy, entropy])
    inputs, labels = make_batch(args)

    def train(steps: int) -> float:
        for _ in range(steps):
            loss = model.train_on_batch(inputs, labels)
        return float(np.asarray(loss).reshape(-1)[0])

    measure(args, train, {
        'parameters': model.count_params(),
        'versions': {'keras': keras.__version__, 'keras_hub': keras_hub.__version__},
    })


if __name__ == '__main__':
    main()
