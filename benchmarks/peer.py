"""What the peers of the step benchmark share: arguments, timing, the JSON line at the end."""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any


def parse_arguments(doc: str | None, variants: Sequence[str] = ()) -> argparse.Namespace:
    """Parses sizes and steps; the defaults are BERT-Base as bert_jax.tools.bench runs it."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--layers', type=int, default=12)
    parser.add_argument('--hidden', type=int, default=768)
    parser.add_argument('--heads', type=int, help='default: hidden / 64')
    parser.add_argument('--vocab_size', type=int, default=30522)
    parser.add_argument('--batch_size', type=int, default=8)
    parser.add_argument('--seq', type=int, default=128)
    parser.add_argument('--predictions', type=int, default=20)
    parser.add_argument('--dtype', choices=['float32', 'bfloat16'], default='float32')
    parser.add_argument('--warmup', type=int, default=2)
    parser.add_argument('--steps', type=int, default=10)
    if variants:
        parser.add_argument('--variant', choices=variants, default=variants[0])
    args = parser.parse_args()
    args.heads = args.heads or max(1, args.hidden // 64)
    return args


def measure(
    args: argparse.Namespace, train: Callable[[int], float], more: dict[str, Any]
) -> None:
    """Times `train(steps)`, which returns the loss once all steps are done; prints a JSON line."""
    train(max(1, args.warmup))
    started = time.perf_counter()
    loss = train(args.steps)
    seconds = time.perf_counter() - started
    print(json.dumps({
        'sequences_per_second': args.steps * args.batch_size / seconds, 'loss': loss, **more
    }))
