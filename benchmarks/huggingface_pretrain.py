"""The peer of the step benchmark: Hugging Face's PyTorch BERT on the same work.

    python -m bert_jax.tools.bench --only=step \\
        --peer='PEER_VENV/bin/python benchmarks/huggingface_pretrain.py'
    PEER_VENV/bin/python benchmarks/huggingface_pretrain.py --steps=10

Needs `pip install torch==2.13.0 transformers` (the extra `parity` of setup.py), best in a virtual
environment of its own. CPU only; one thread a core.

The work is that of bert_jax's train step: masked LM and next sentence prediction with dropout,
gradient clipping and AdamW in float32 (`--dtype=bfloat16`: autocast). The peer gets its best
options: scaled dot-product attention, fused AdamW, and, as all tokens are real, no attention mask,
which would keep the fastest attention from being used. It prints one JSON line.
"""

import argparse
import contextlib
import json
import os
import time

import torch
import transformers

_NUM_BATCHES = 4  # different ones, taken in turn


def parse_arguments() -> argparse.Namespace:
    """The sizes; the defaults are BERT-Base as bert_jax.tools.bench runs it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
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
    return parser.parse_args()


def make_model(args: argparse.Namespace) -> torch.nn.Module:
    """BertForPreTraining in training mode, dropout 0.1 as by default."""
    config = transformers.BertConfig(
        vocab_size=args.vocab_size, hidden_size=args.hidden, num_hidden_layers=args.layers,
        num_attention_heads=args.heads or max(1, args.hidden // 64),
        intermediate_size=4 * args.hidden, max_position_embeddings=max(512, args.seq),
    )
    model = transformers.AutoModelForPreTraining.from_config(config, attn_implementation='sdpa')
    assert isinstance(model, transformers.BertForPreTraining)
    return model.train()


def make_batch(args: argparse.Namespace) -> dict[str, torch.Tensor]:
    """Random full-length rows with `predictions` masked positions each."""
    shape = (args.batch_size, args.seq)
    ids = torch.randint(args.vocab_size, shape)
    positions = torch.rand(shape).argsort(1)[:, : args.predictions]
    labels = torch.full(shape, -100).scatter(1, positions, ids.gather(1, positions))
    segments = (torch.arange(args.seq) > args.seq // 2).long().expand(shape).contiguous()
    return {
        'input_ids': ids, 'token_type_ids': segments, 'labels': labels,
        'next_sentence_label': torch.randint(2, (args.batch_size,)),
    }


def main() -> None:
    args = parse_arguments()
    pinned = hasattr(os, 'sched_getaffinity')
    torch.set_num_threads(len(os.sched_getaffinity(0)) if pinned else os.cpu_count() or 1)
    torch.manual_seed(0)
    model = make_model(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    batches = [make_batch(args) for _ in range(_NUM_BATCHES)]

    def train(steps: int) -> float:
        for i in range(steps):
            with (torch.autocast('cpu', torch.bfloat16) if args.dtype == 'bfloat16'
                  else contextlib.nullcontext()):
                loss = model(**batches[i % _NUM_BATCHES]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    train(max(1, args.warmup))
    started = time.perf_counter()
    loss = train(args.steps)
    seconds = time.perf_counter() - started
    print(json.dumps({
        'sequences_per_second': args.steps * args.batch_size / seconds,
        'loss': loss,
        'parameters': sum(p.numel() for p in model.parameters()),
        'threads': torch.get_num_threads(),
        'attention': model.config._attn_implementation,
        'versions': {'torch': torch.__version__, 'transformers': transformers.__version__},
    }))


if __name__ == '__main__':
    main()
