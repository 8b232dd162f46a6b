"""Sentence vectors: bert_jax's `predict features` against Hugging Face's PyTorch BERT.

    python benchmarks/huggingface_features.py --sentences FILE --vocab_file vocab.txt

It measures the way from sentences, one per line, to mean-pooled vectors of the last layer,
tokenization included. Both programs load one folder, with the same random BERT-Base weights (speed
does not depend on them) or with those of --weights, and compute in float32 on all cores; their
vectors are checked to agree. The peer runs batches of `--batch_size` sentences padded to their
longest, with scaled dot-product attention and its fast tokenizer: once in the order of the file,
once sorted by length, as sentence-transformers does. Ours packs the sentences into rows.

Each program has a process of its own. Rounds are interleaved (ours, in order, sorted, then
backwards), and one program waits while the other works; the first call of each, with compilation,
is not counted but reported. It prints a table and one JSON line.

Needs `pip install torch==2.13.0 transformers` (the extra `parity` of setup.py). CPU only.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from worker import Worker, serve


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--sentences', required=True, help='file, one a line')
    parser.add_argument('--weights', help='Hugging Face folder; default: random weights')
    parser.add_argument('--vocab_file', help="of random weights, such as bert-base-uncased's")
    parser.add_argument('--num_sentences', type=int, default=400, help='of the file, from its top')
    parser.add_argument('--layers', type=int, default=12)
    parser.add_argument('--hidden', type=int, default=768)
    parser.add_argument('--batch_size', type=int, default=32, help="the peer's")
    parser.add_argument('--rounds', type=int, default=4)
    parser.add_argument('--worker', choices=['ours', 'peer'], help=argparse.SUPPRESS)
    parser.add_argument('--model', help=argparse.SUPPRESS)
    return parser.parse_args()


def read_sentences(args: argparse.Namespace) -> list[str]:
    lines = Path(args.sentences).read_text(encoding='utf-8').split('\n')
    return [line for line in lines if line.strip()][: args.num_sentences]


def make_model(args: argparse.Namespace, folder: str) -> None:
    """Writes the weights into a folder that both programs read."""
    if args.weights:
        shutil.copytree(args.weights, folder, dirs_exist_ok=True)
        return
    import torch
    import transformers

    torch.manual_seed(0)
    num_tokens = len(Path(args.vocab_file).read_text(encoding='utf-8').splitlines())
    config = transformers.BertConfig(
        vocab_size=num_tokens, hidden_size=args.hidden, num_hidden_layers=args.layers,
        num_attention_heads=max(1, args.hidden // 64), intermediate_size=4 * args.hidden,
    )
    transformers.BertModel(config).save_pretrained(folder)
    Path(folder, 'vocab.txt').write_bytes(Path(args.vocab_file).read_bytes())
    Path(folder, 'tokenizer_config.json').write_text(
        json.dumps({'tokenizer_class': 'BertTokenizer', 'do_lower_case': True}))


def our_vectors(args: argparse.Namespace):
    """A function (sentences, order) -> vectors, by this project; the order has no effect."""
    from bert_jax.predict import load

    model = load(args.model, dtype='float32')
    return lambda sentences, order: model.vectors(sentences, 'mean', normalize=False)


def peer_vectors(args: argparse.Namespace):
    """A function (sentences, 'file' or 'sorted') -> vectors, by Hugging Face."""
    import torch
    import transformers

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = transformers.BertModel.from_pretrained(
        args.model, attn_implementation='sdpa', add_pooling_layer=False
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    assert tokenizer.is_fast

    @torch.inference_mode()
    def vectors(sentences: list[str], order: str) -> np.ndarray:
        indices = list(range(len(sentences)))
        if order == 'sorted':
            indices.sort(key=lambda i: -len(sentences[i]))
        result = np.empty((len(sentences), model.config.hidden_size), np.float32)
        for start in range(0, len(sentences), args.batch_size):
            part = indices[start : start + args.batch_size]
            batch = tokenizer([sentences[i] for i in part], padding=True, truncation=True,
                              max_length=512, return_tensors='pt')
            hidden = model(**batch).last_hidden_state
            mask = batch['attention_mask'][..., None].float()
            result[part] = ((hidden * mask).sum(1) / mask.sum(1)).numpy()
        return result

    return vectors


def work(args: argparse.Namespace) -> Callable[[str], float]:
    """A function 'file' or 'sorted' -> seconds for all vectors, which it saves beside the model."""
    sentences = read_sentences(args)
    vectors = (our_vectors if args.worker == 'ours' else peer_vectors)(args)

    def answer(order: str) -> float:
        started = time.perf_counter()
        result = vectors(sentences, order)
        seconds = time.perf_counter() - started
        np.save(Path(args.model, f'{args.worker}.npy'), result)
        return seconds

    return answer


def main() -> None:
    args = parse_arguments()
    if args.worker:
        serve(args.worker, lambda: work(args))
        return
    sentences = read_sentences(args)
    with tempfile.TemporaryDirectory() as folder:
        make_model(args, folder)
        ours, peer = (Worker(name, folder, f'--model={folder}') for name in ('ours', 'peer'))
        runs = {'ours': (ours, 'file'), 'peer, in order': (peer, 'file'),
                'peer, sorted': (peer, 'sorted')}
        first = {name: worker(order) for name, (worker, order) in runs.items()}
        found = [np.load(Path(folder, f'{name}.npy')) for name in ('ours', 'peer')]
        difference = float(np.abs(found[0] - found[1]).max())
        assert difference < 1e-3, difference
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for i in range(args.rounds):
            for name in list(runs)[:: 1 if i % 2 == 0 else -1]:
                worker, order = runs[name]
                seconds[name].append(worker(order))
        ours.end()
        peer.end()
    rates = {name: [len(sentences) / s for s in x] for name, x in seconds.items()}
    print(f'{len(sentences)} sentences, {args.rounds} rounds; sentences/s: median (smallest-'
          'largest), first call in seconds, ours / it (median of the rounds)')
    ratios = {}
    for name, x in rates.items():
        ratios[name] = statistics.median(a / b for a, b in zip(rates['ours'], x, strict=True))
        print(f'{name:16} {statistics.median(x):8.1f} ({min(x):.1f}-{max(x):.1f}) '
              f'{first[name]:6.1f} {ratios[name]:6.2f}')
    print(json.dumps({
        'sentences_per_second': rates, 'first_call_seconds': first, 'ratios': ratios,
        'largest_difference': difference,
    }))


if __name__ == '__main__':
    main()
