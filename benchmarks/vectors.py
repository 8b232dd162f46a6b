"""Vectors of sentences: bert_jax or Hugging Face's PyTorch, one program a process, on any device.

    python benchmarks/vectors.py --program=ours [--sentences=12000] [--file=FILE --vocab_file=FILE]
    python benchmarks/vectors.py --program=pytorch

It measures the way from sentences to mean-pooled vectors of the last layer of a BERT with random
weights, tokenization included, in bfloat16 on a GPU and in float32 on a CPU. PyTorch runs batches
of --batch_size, padded to their longest, in the order of the sentences and sorted by length; ours
packs them into rows. Without --file the sentences are made up: words of the vocabulary, 2 to 50 of
them, 11 on average. It prints the first call's seconds, which are not counted, and one JSON line.
That both programs give the same vectors is checked by `python -m benchmarks.page`.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SPECIAL = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')

Encode = Callable[[Sequence[str]], Any]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--program', required=True, choices=['ours', 'pytorch'])
    parser.add_argument('--file', help='sentences, one a line')
    parser.add_argument('--vocab_file', help="such as bert-base-uncased's; default: made-up words")
    parser.add_argument('--sentences', type=int, default=12_000)
    parser.add_argument('--size', default='base', help="of the model, as bert_jax's model.name")
    parser.add_argument('--batch_size', type=int, default=128, help="PyTorch's")
    parser.add_argument('--repeats', type=int, default=3)
    return parser.parse_args()


def made_up_vocabulary(num_words: int = 30_522) -> list[str]:
    """BERT's special pieces, and other words of five letters."""
    rng = random.Random(0)
    words = set()
    while len(words) < num_words - len(SPECIAL):
        words.add(''.join(rng.choices('abcdefghijklmnopqrstuvwxyz', k=5)))
    return [*SPECIAL, *sorted(words)]


def made_up_sentences(vocabulary: Sequence[str], count: int) -> list[str]:
    """Sentences of 2 to 50 words."""
    rng = random.Random(0)
    words = vocabulary[len(SPECIAL):]
    sentences = []
    for _ in range(count):
        length = min(50, 2 + int(rng.expovariate(1 / 9.5)))
        sentences.append(' '.join(rng.choices(words, k=length)))
    return sentences


def our_encoders(args: argparse.Namespace, vocab_file: Path) -> dict[str, Encode]:
    """This project's function, of which the order does not matter."""
    import bert_jax
    from bert_jax.loading import load

    folder = str(vocab_file.parent / 'model')
    bert_jax.from_config(args.size, 'encoder', vocab_file=vocab_file).save(folder)
    model = load(folder)
    return {'packed': lambda sentences: model.vectors(sentences, 'mean', normalize=False)}


def pytorch_encoders(args: argparse.Namespace, vocab_file: Path) -> dict[str, Encode]:
    """Hugging Face's function, for both orders."""
    import torch
    import transformers

    from bert_jax.config import size_named

    num_layers, hidden, heads = size_named(args.size, '--size')
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    dtype = torch.bfloat16 if device == 'cuda' else torch.float32
    (vocab_file.parent / 'tokenizer_config.json').write_text(
        json.dumps({'tokenizer_class': 'BertTokenizer', 'do_lower_case': True}))
    config = transformers.BertConfig(
        vocab_size=len(vocab_file.read_text().splitlines()), hidden_size=hidden,
        num_hidden_layers=num_layers, num_attention_heads=heads, intermediate_size=4 * hidden,
        attn_implementation='sdpa')
    config.save_pretrained(vocab_file.parent)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(vocab_file.parent))
    model = transformers.BertModel(config, add_pooling_layer=False).to(device, dtype).eval()

    @torch.inference_mode()
    def encode(sentences: Sequence[str]) -> Any:
        parts = []
        for start in range(0, len(sentences), args.batch_size):
            batch = tokenizer(
                list(sentences[start:start + args.batch_size]), padding=True, truncation=True,
                max_length=512, return_tensors='pt').to(device)
            hidden = model(**batch).last_hidden_state.float()
            mask = batch['attention_mask'][..., None]
            parts.append((hidden * mask).sum(1) / mask.sum(1))
        return torch.cat(parts).cpu().numpy()

    return {
        'in order': encode, 'sorted': lambda sentences: encode(sorted(sentences, key=len))}


def measure(
    encoders: dict[str, Encode], sentences: Sequence[str], repeats: int
) -> dict[str, list[float]]:
    """Sentences/s of each encoder, whose first call, with compilation, is only printed."""
    rates: dict[str, list[float]] = {}
    for name, encode in encoders.items():
        rates[name] = []
        for number in range(repeats + 1):
            started = time.perf_counter()
            vectors = encode(sentences)
            seconds = time.perf_counter() - started
            assert len(vectors) == len(sentences)
            if number == 0:
                print(f'{name}: first call {seconds:.1f} s', flush=True)
            else:
                rates[name].append(len(sentences) / seconds)
                print(f'{name}: {rates[name][-1]:,.0f} sentences/s', flush=True)
    return rates


def main() -> None:
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        vocab_file = Path(folder, 'vocab.txt')
        if args.vocab_file:
            vocab_file.write_bytes(Path(args.vocab_file).read_bytes())
        else:
            vocab_file.write_text('\n'.join(made_up_vocabulary()) + '\n')
        vocabulary = vocab_file.read_text().splitlines()
        if args.file:
            sentences = Path(args.file).read_text().splitlines()[: args.sentences]
        else:
            sentences = made_up_sentences(vocabulary, args.sentences)
        make = our_encoders if args.program == 'ours' else pytorch_encoders
        rates = measure(make(args, vocab_file), sentences, args.repeats)
    print(json.dumps({'sentences': len(sentences), 'sentences_per_second': rates}))


if __name__ == '__main__':
    main()
