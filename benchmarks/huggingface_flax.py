"""A peer of the step benchmark: Hugging Face's Flax BERT, in the last release that has one.

    FLAX_VENV/bin/python benchmarks/huggingface_flax.py --dtype=bfloat16

Needs `pip install 'transformers==4.57.*' 'jax[cuda12]==0.6.2' 'flax==0.10.*' optax` in an
environment of its own. The work is that of `huggingface_pretrain.py`: FlaxBertForPreTraining with
dropout, logits at all positions, clipping and optax's AdamW, parameters in float32, one jitted step
that donates its state. It prints one JSON line.
"""

import argparse

import jax
import jax.numpy as jnp
import optax
import transformers
from peer import measure, parse_arguments


def make_batch(args: argparse.Namespace, keys: jax.Array) -> dict[str, jax.Array]:
    """Random full-length rows with `predictions` masked positions each."""
    shape = (args.batch_size, args.seq)
    rank = jnp.argsort(jax.random.uniform(keys[1], shape), axis=1)
    segments = jnp.broadcast_to(jnp.arange(args.seq) > args.seq // 2, shape)
    return {
        'ids': jax.random.randint(keys[0], shape, 0, args.vocab_size),
        'masked': (rank < args.predictions).astype(jnp.float32),
        'segments': segments.astype(jnp.int32),
        'next': jax.random.randint(keys[2], shape[:1], 0, 2),
    }


def main() -> None:
    args = parse_arguments(__doc__)
    config = transformers.BertConfig(
        vocab_size=args.vocab_size, hidden_size=args.hidden, num_hidden_layers=args.layers,
        num_attention_heads=args.heads, intermediate_size=4 * args.hidden,
        max_position_embeddings=max(512, args.seq),
    )
    model = transformers.FlaxBertForPreTraining(config, seed=0, dtype=getattr(jnp, args.dtype))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4, weight_decay=0.01))
    keys = jax.random.split(jax.random.key(0), 4)
    batch = make_batch(args, keys)

    def loss_of(params, batch, key):
        mask = jnp.ones(batch['ids'].shape, jnp.int32)
        logits, next_logits = model(
            batch['ids'], mask, batch['segments'], params=params, dropout_rng=key, train=True
        )[:2]
        entropy = optax.softmax_cross_entropy_with_integer_labels
        words = entropy(logits.astype(jnp.float32), batch['ids']) * batch['masked']
        return words.sum() / batch['masked'].sum() + entropy(
            next_logits.astype(jnp.float32), batch['next']).mean()

    def step(params, state, batch, key):
        key, now = jax.random.split(key)
        loss, gradients = jax.value_and_grad(loss_of)(params, batch, now)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, key, loss

    jitted = jax.jit(step, donate_argnums=(0, 1))
    params = model.params
    state = optimizer.init(params)
    key = keys[3]

    def train(steps: int) -> float:
        nonlocal params, state, key
        for _ in range(steps):
            params, state, key, loss = jitted(params, state, batch, key)
        return float(loss)

    measure(args, train, {
        'device': jax.devices()[0].device_kind,
        'versions': {'jax': jax.__version__, 'transformers': transformers.__version__},
    })


if __name__ == '__main__':
    main()
