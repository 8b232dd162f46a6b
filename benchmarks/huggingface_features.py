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
import functools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from worker import Worker, serve

# (Sentences, 'file' or 'sorted') -> vectors in the order of the sentences.
Vectors = Callable[[list[str], str], np.ndarray]


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


def our_vectors(args: argparse.Namespace) -> Vectors:
    """The function of this project; the order has no effect."""
    from bert_jax.loading import load

    model = load(args.model, dtype='float32')
    return lambda sentences, order: model.vectors(sentences, 'mean', normalize=False)


def peer_vectors(args: argparse.Namespace) -> Vectors:
    """The function of Hugging Face."""
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


def prepare(args: argparse.Namespace) -> Callable[[str], float]:
    """A function 'file' or 'sorted' -> seconds for all vectors, which it saves beside the model."""
    sentences = read_sentences(args)
    vectors = our_vectors(args) if args.worker == 'ours' else peer_vectors(args)

    def answer(order: str) -> float:
        started = time.perf_counter()
        result = vectors(sentences, order)
        seconds = time.perf_counter() - started
        np.save(vectors_file(args.model, args.worker), result)
        return seconds

    return answer


def vectors_file(folder: str, program: str) -> Path:
    """Where a program saves its vectors."""
    return Path(folder, f'{program}.npy')


class Measured(NamedTuple):
    """What was measured.

    Attributes:
      first: seconds of the first call of each program and order.
      seconds: of its later calls.
      difference: the largest between the programs' vectors.
    """

    first: dict[str, float]
    seconds: dict[str, list[float]]
    difference: float


def measure(rounds: int, folder: str) -> Measured:
    """Runs both programs in turn on the model in a folder."""
    ours = Worker('ours', folder, f'--model={folder}')
    peer = Worker('peer', folder, f'--model={folder}')
    calls = {
        'ours': functools.partial(ours, 'file'),
        'peer, in order': functools.partial(peer, 'file'),
        'peer, sorted': functools.partial(peer, 'sorted'),
    }
    first = {name: call() for name, call in calls.items()}
    expected = np.load(vectors_file(folder, 'peer'))
    found = np.load(vectors_file(folder, 'ours'))
    difference = float(np.abs(found - expected).max())
    assert difference < 1e-3, difference
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        order = list(calls) if number % 2 == 0 else list(reversed(calls))
        for name in order:
            seconds[name].append(calls[name]())
    ours.end()
    peer.end()
    return Measured(first, seconds, difference)


def main() -> None:
    args = parse_arguments()
    if args.worker:
        serve(args.worker, functools.partial(prepare, args))
        return
    num_sentences = len(read_sentences(args))
    with tempfile.TemporaryDirectory() as folder:
        make_model(args, folder)
        measured = measure(args.rounds, folder)
    print(f'{num_sentences} sentences, {args.rounds} rounds; sentences/s: median (smallest-'
          'largest), first call in seconds, ours / it (median of the rounds)')
    rates = {}
    for name, seconds in measured.seconds.items():
        rates[name] = [num_sentences / taken for taken in seconds]
    ratios = {}
    for name, found in rates.items():
        ratios[name] = statistics.median(
            our_rate / rate for our_rate, rate in zip(rates['ours'], found, strict=True))
        print(f'{name:16} {statistics.median(found):8.1f} ({min(found):.1f}-{max(found):.1f}) '
              f'{measured.first[name]:6.1f} {ratios[name]:6.2f}')
    print(json.dumps({
        'sentences_per_second': rates, 'first_call_seconds': measured.first, 'ratios': ratios,
        'largest_difference': measured.difference,
    }))


if __name__ == '__main__':
    main()
