"""A masked LM of DNA against Markov chains that are fitted on the same letters.

    python -m benchmarks.dna_against_markov --work=/tmp/dna --tokenizer=kmer:6
    python -m benchmarks.dna_against_markov --work=/tmp/dna --tokenizer=letters:ACGTN \
        --fasta=genome.fna.gz --steps=4000

The last tenth of the letters is held out. A model is pre-trained on the rest by
configs/dna_pretrain.py. Then both predict the same letters, those of the token in the middle of
windows of held-out letters, and both know what stands on either side: a chain by Bayes' rule, from
the products of its conditional probabilities for all letters that might stand there. (A chain that
reads from left to right knows less; its figure is given too, as it is the usual one.) Figures are
nats a letter, that of a k-mer divided by k, and less is better: ln 4 = 1.386 if nothing is known.

Without --fasta, the letters are drawn: a chain of order 6 with motifs, and copies of earlier
letters, both with errors.

    n: windows, m: order of a chain, k: letters of a token, C: 4^k
"""

import argparse
import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np

from bert_jax import predict
from bert_jax.corpus.sources import open_source
from bert_jax.predict.masked_words import MaskedText, Score
from bert_jax.predict.stream import stream

BASES = 'ACGT'
ORDERS = (0, 2, 5, 6, 8)
PRIOR = 100.0  # letters that the shorter context counts for, beside those of a context
HELD_OUT = 0.1
ROOT = Path(__file__).resolve().parent.parent


def drawn_letters(num: int, seed: int) -> str:
    """Letters with structure: a chain of order 6, motifs, and copies."""
    draw = random.Random(seed)
    shares = {}
    motifs = [''.join(draw.choices(BASES, k=16)) for _ in range(20)]
    letters = draw.choices(BASES, k=6)
    while len(letters) < num:
        for _ in range(draw.randrange(20, 120)):
            context = ''.join(letters[-6:])
            if context not in shares:
                shares[context] = [draw.gammavariate(0.7, 1) for _ in BASES]
            letters += draw.choices(BASES, shares[context])
        added = list(draw.choice(motifs))
        if draw.random() < 0.3:
            begin = max(0, len(letters) - draw.randrange(60, 200))
            added = letters[begin : begin + 60]
        for letter in added:
            letters.append(draw.choice(BASES) if draw.random() < 0.05 else letter)
    return ''.join(letters[:num])


def read_letters(fasta: str) -> str:
    """All letters of a FASTA file."""
    source = open_source(f'fasta:{fasta}')
    texts = [document.text for unit in source.units for document in source.read(unit)]
    return b''.join(texts).replace(b'\n', b'').decode()


def digits_of(letters: str) -> np.ndarray:
    """[L] int64: 0 to 3; other letters count as A."""
    table = np.zeros(256, np.int64)
    table[[ord(base) for base in BASES]] = range(len(BASES))
    return table[np.frombuffer(letters.encode(), np.uint8)]


def fitted_chain(digits: np.ndarray, order: int) -> np.ndarray:
    """[4^m, 4]: log probability of a letter after m letters, smoothed by shorter contexts."""
    shares = np.full((1, 4), 0.25)
    for length in range(order + 1):
        context = np.zeros(len(digits) - length, np.int64)
        for place in range(length):
            context = context * 4 + digits[place : place + len(context)]
        index = context * 4 + digits[length:]
        counts = np.bincount(index, minlength=4 ** (length + 1)).reshape(-1, 4)
        shorter = shares
        if length:
            shorter = np.tile(shares, (4, 1))  # the last letters of a context are its low digits
        shares = (counts + PRIOR * shorter) / (counts.sum(axis=1, keepdims=True) + PRIOR)
    return np.log(shares)


def log_products(chain: np.ndarray, digits: np.ndarray, order: int) -> np.ndarray:
    """[...]: log probability of letters [..., L] but the first m, each after those before it."""
    total = np.zeros(digits.shape[:-1])
    for place in range(order, digits.shape[-1]):
        context = np.zeros(digits.shape[:-1], np.int64)
        for before in range(place - order, place):
            context = context * 4 + digits[..., before]
        total += chain[context, digits[..., place]]
    return total


def between_both_sides(
    chain: np.ndarray, order: int, windows: np.ndarray, middle: int, size: int
) -> np.ndarray:
    """[n]: log probability of k letters of windows [n, L], given those on both sides.

    Args:
      chain: of `fitted_chain`.
      order: m.
      windows: digits.
      middle: place of the first of the k letters.
      size: k.
    """
    candidates = np.array(list(itertools.product(range(4), repeat=size)))
    found = []
    for window in windows:
        around = window[middle - order : middle + size + order]
        filled = np.tile(around, (len(candidates), 1))
        filled[:, order : order + size] = candidates
        products = log_products(chain, filled, order)
        own = log_products(chain, around[None], order)[0]
        found.append(own - np.logaddexp.reduce(products))
    return np.array(found)


class MiddleToken(Score):
    """The log probability of the token in the middle of each text."""

    def read(self, text: str, number: int) -> MaskedText:
        """The token that is predicted."""
        ids = self.model.encode(text)
        return MaskedText(text, self._masked(ids, [len(ids) // 2]))


def mean_and_error(nats: np.ndarray) -> str:
    """A mean with its standard error."""
    return f'{nats.mean():.4f} +- {nats.std() / len(nats) ** 0.5:.4f}'


def train(args: argparse.Namespace, folder: Path) -> Path:
    """Pre-trains a model, unless it is there; its run directory."""
    run = folder / f"{args.tokenizer.replace(':', '-')}-{args.steps}"
    settings = [f'data.source=fasta:{folder}/train.fa', f'data.eval_source=fasta:{folder}/held.fa',
                f'data.dir={folder}/cache', f'train.steps={args.steps}', *args.settings]
    if not (run / 'result.json').exists():
        command = [sys.executable, '-m', 'bert_jax.main', f'--workdir={run}',
                   f'--config={ROOT}/configs/dna_pretrain.py:{args.tokenizer}',
                   *(f'--config.{setting}' for setting in settings)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        (run / 'result.json').write_text(output.splitlines()[-1].removeprefix('result '))
    return run


def main() -> None:
    """Makes the letters, trains, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--work', required=True)
    parser.add_argument('--tokenizer', default='kmer:6')
    parser.add_argument('--fasta')
    parser.add_argument('--letters', type=int, default=3_000_000)
    parser.add_argument('--steps', type=int, default=2000)
    parser.add_argument('--windows', type=int, default=2000)
    parser.add_argument('--settings', nargs='*', default=[], help='fields of the config')
    args = parser.parse_args()
    name = Path(args.fasta).name if args.fasta else 'drawn'
    folder = Path(args.work, name)
    folder.mkdir(parents=True, exist_ok=True)
    letters = read_letters(args.fasta) if args.fasta else drawn_letters(args.letters, seed=0)
    num_train = round(len(letters) * (1 - HELD_OUT))
    for part, content in (('train', letters[:num_train]), ('held', letters[num_train:])):
        (folder / f'{part}.fa').write_text(f'>{part}\n{content}\n')

    model = predict.load(train(args, folder))
    size = getattr(model.tokenizer, 'size', 1)
    width = size * (model.max_length - 2)
    middle = size * (model.max_length // 2 - 1)
    held = letters[num_train:]
    begins = np.random.default_rng(0).integers(0, len(held) - width, 10 * args.windows)
    texts = [held[begin : begin + width] for begin in begins.tolist()]
    texts = [text for text in texts if set(text) <= set(BASES)][: args.windows]
    results = stream(model, texts, MiddleToken(model))
    found = [result['log_probability'] for result in results]
    rows = {f'masked LM, {args.tokenizer}': -np.array(found) / size}

    digits = digits_of(letters[:num_train])
    windows = np.array([digits_of(text) for text in texts])
    for order in ORDERS:
        chain = fitted_chain(digits, order)
        both = between_both_sides(chain, order, windows, middle, size)
        rows[f'chain of order {order}, both sides'] = -both / size
        left = log_products(chain, windows[:, middle - order : middle + size], order)
        rows[f'chain of order {order}, left to right'] = -left / size
    print(json.dumps({'letters': len(letters), 'windows': len(texts), 'k': size}))
    for name, nats in rows.items():
        print(f'{name:40} {mean_and_error(nats)} nats a letter')


if __name__ == '__main__':
    main()
