"""A peer of the step benchmark: Hugging Face's PyTorch BERT on the same work.

    python -m benchmarks.in_turn --peer='PEER_VENV/bin/python benchmarks/huggingface_pretrain.py'
    PEER_VENV/bin/python benchmarks/huggingface_pretrain.py --steps=10 --variant=tuned

Needs `pip install torch==2.13.0 transformers` (the extra `parity` of setup.py), best in a virtual
environment of its own. It runs on a GPU if there is one, else on CPUs with one thread per core.

The work is that of bert_jax's train step: masked LM and next sentence prediction with dropout,
gradient clipping and AdamW in float32 (`--dtype=bfloat16`: autocast). The peer gets its best
options: scaled dot-product attention, fused AdamW, and, as all tokens are real, no attention mask,
which would rule out the fastest attention. `--variant=compiled` is the same under torch.compile;
`tuned` also computes the masked-LM head only at the masked positions. It prints one JSON line.
"""

import argparse
import os

import torch
import transformers
from peer import measure, parse_arguments

_NUM_BATCHES = 4  # different batches, used in turn


def make_model(args: argparse.Namespace) -> transformers.BertForPreTraining:
    """BertForPreTraining in training mode, with the default dropout of 0.1."""
    config = transformers.BertConfig(
        vocab_size=args.vocab_size, hidden_size=args.hidden, num_hidden_layers=args.layers,
        num_attention_heads=args.heads, intermediate_size=4 * args.hidden,
        max_position_embeddings=max(512, args.seq),
    )
    model = transformers.AutoModelForPreTraining.from_config(config, attn_implementation='sdpa')
    assert isinstance(model, transformers.BertForPreTraining)
    return model.train()


def make_batch(args: argparse.Namespace, device: str) -> dict[str, torch.Tensor]:
    """Random full-length rows with `predictions` masked positions each."""
    shape = (args.batch_size, args.seq)
    ids = torch.randint(args.vocab_size, shape)
    positions = torch.rand(shape).argsort(1)[:, : args.predictions]
    labels = torch.full(shape, -100).scatter(1, positions, ids.gather(1, positions))
    segments = (torch.arange(args.seq) > args.seq // 2).long().expand(shape).contiguous()
    batch = {
        'input_ids': ids, 'token_type_ids': segments, 'labels': labels,
        'next_sentence_label': torch.randint(2, (args.batch_size,)), 'positions': positions,
    }
    return {name: values.to(device) for name, values in batch.items()}


def loss_everywhere(
    model: transformers.BertForPreTraining, batch: dict[str, torch.Tensor]
) -> torch.Tensor:
    """The model's own loss, with logits at all positions."""
    inputs = {name: values for name, values in batch.items() if name != 'positions'}
    return model(**inputs).loss


def loss_where_masked(
    model: transformers.BertForPreTraining, batch: dict[str, torch.Tensor]
) -> torch.Tensor:
    """The same loss, with logits only at the masked positions."""
    states, pooled = model.bert(batch['input_ids'], token_type_ids=batch['token_type_ids'])[:2]
    positions = batch['positions']
    states = states.gather(1, positions[:, :, None].expand(-1, -1, states.shape[-1]))
    logits, next_logits = model.cls(states, pooled)
    entropy = torch.nn.functional.cross_entropy
    return entropy(
        logits.flatten(0, 1).float(), batch['labels'].gather(1, positions).flatten()
    ) + entropy(next_logits.float(), batch['next_sentence_label'])


def num_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def main() -> None:
    args = parse_arguments(__doc__, ('stock', 'compiled', 'tuned'))
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    torch.set_num_threads(num_cores())
    torch.manual_seed(0)
    torch.set_float32_matmul_precision('high')
    model = make_model(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    batches = [make_batch(args, device) for _ in range(_NUM_BATCHES)]
    compute = loss_where_masked if args.variant == 'tuned' else loss_everywhere
    if args.variant != 'stock':
        compute = torch.compile(compute)

    def train(steps: int) -> float:
        for number in range(steps):
            with torch.autocast(device, torch.bfloat16, enabled=args.dtype == 'bfloat16'):
                loss = compute(model, batches[number % _NUM_BATCHES])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()  # waits for the device

    device_name = f'{torch.get_num_threads()} threads'
    if device == 'cuda':
        device_name = torch.cuda.get_device_name()
    measure(args, train, {
        'parameters': sum(parameter.numel() for parameter in model.parameters()),
        'variant': args.variant, 'device': device_name,
        'attention': model.config._attn_implementation,
        'versions': {'torch': torch.__version__, 'transformers': transformers.__version__},
    })


if __name__ == '__main__':
    main()
