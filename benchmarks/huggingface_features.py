"""Sentence vectors: bert_jax's `predict features` or Hugging Face's PyTorch BERT, one a process.

`python -m benchmarks.page` starts these programs. The work is the way from sentences, one a line,
to mean-pooled vectors of the last layer, tokenization included, in float32 on all cores. The peer
runs batches of 32 sentences padded to their longest, with scaled dot-product attention and its fast
tokenizer: in the order of the file, or sorted by length, as sentence-transformers does. Ours packs
the sentences into rows. The program `model` writes a folder of random weights, on which speed does
not depend, and ends; all others read it, and each checks that its vectors are those of the others.

A program is ready when it has made the vectors of the first sentences, ours with compilation.
"""

import argparse
import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.worker import make_parser, serve

BATCH_SIZE = 32  # the peer's
MOST_FOR_WARM_UP = 400
PEERS = ('in order', 'sorted by length')

# Sentences -> vectors [sentences, hidden] in their order, an array of numpy.
Vectors = Callable[[list[str]], Any]


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, ['model', 'ours', *PEERS])
    parser.add_argument('--model', required=True, help='folder of the weights')
    parser.add_argument('--layers', type=int)
    parser.add_argument('--hidden', type=int)
    parser.add_argument('--heads', type=int)
    parser.add_argument('--vocab_file', help='of the model that is made')
    parser.add_argument('--sentences', help='file, one a line')
    parser.add_argument('--num_sentences', type=int, help='of the file, from its top')
    return parser.parse_args()


def make_model(args: argparse.Namespace) -> None:
    """Writes random weights into a folder that all programs read."""
    import torch
    import transformers

    torch.manual_seed(0)
    vocabulary = Path(args.vocab_file).read_text(encoding='utf-8')
    config = transformers.BertConfig(
        vocab_size=len(vocabulary.splitlines()), hidden_size=args.hidden,
        num_hidden_layers=args.layers, num_attention_heads=args.heads,
        intermediate_size=4 * args.hidden)
    transformers.BertModel(config).save_pretrained(args.model)
    Path(args.model, 'vocab.txt').write_text(vocabulary, encoding='utf-8')
    Path(args.model, 'tokenizer_config.json').write_text(
        json.dumps({'tokenizer_class': 'BertTokenizer', 'do_lower_case': True}))


def our_vectors(args: argparse.Namespace) -> Vectors:
    """The function of this project."""
    from bert_jax.loading import load

    model = load(args.model, dtype='float32')
    return lambda sentences: model.vectors(sentences, 'mean', normalize=False)


def peer_vectors(args: argparse.Namespace) -> Vectors:
    """The function of Hugging Face."""
    import numpy as np
    import torch
    import transformers

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = transformers.BertModel.from_pretrained(
        args.model, attn_implementation='sdpa', add_pooling_layer=False
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    assert tokenizer.is_fast

    @torch.inference_mode()
    def vectors(sentences: list[str]) -> np.ndarray:
        indices = list(range(len(sentences)))
        if args.program == 'sorted by length':
            indices.sort(key=lambda i: -len(sentences[i]))
        result = np.empty((len(sentences), model.config.hidden_size), np.float32)
        for start in range(0, len(sentences), BATCH_SIZE):
            part = indices[start : start + BATCH_SIZE]
            batch = tokenizer([sentences[i] for i in part], padding=True, truncation=True,
                              max_length=512, return_tensors='pt')
            hidden = model(**batch).last_hidden_state
            mask = batch['attention_mask'][..., None].float()
            result[part] = ((hidden * mask).sum(1) / mask.sum(1)).numpy()
        return result

    return vectors


def prepare(args: argparse.Namespace) -> Callable[[], dict[str, float]]:
    """A function that makes all vectors."""
    lines = Path(args.sentences).read_text(encoding='utf-8').split('\n')
    sentences = [line for line in lines if line.strip()][: args.num_sentences]
    assert len(sentences) == args.num_sentences, 'the file has too few sentences'
    vectors = our_vectors(args) if args.program == 'ours' else peer_vectors(args)
    check_agreement(args, vectors(sentences[:MOST_FOR_WARM_UP]))

    def work() -> dict[str, float]:
        started = time.perf_counter()
        vectors(sentences)
        return {'seconds': time.perf_counter() - started}

    return work


def check_agreement(args: argparse.Namespace, vectors: Any) -> None:
    """Leaves our vectors beside the model, and compares a peer's with them."""
    import numpy as np

    path = Path(args.model, 'vectors.npy')
    if args.program == 'ours':
        np.save(path, vectors)
    else:
        difference = float(np.abs(vectors - np.load(path)).max())
        assert difference < 1e-3, difference


def main() -> None:
    args = parse_arguments()
    if args.program == 'model':
        make_model(args)
    else:
        serve(functools.partial(prepare, args))


if __name__ == '__main__':
    main()
