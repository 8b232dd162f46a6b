"""Training of vectors: bert_jax beside sentence-transformers, in turn, a process each, on CPUs.

    JAX_PLATFORMS=cpu PYTHONPATH=. python benchmarks/retrieval.py --batch_size=256 --parts=16

Both start from one folder of random weights, and train on the same pairs of made-up texts that are
as long as the model takes: whole batches (MultipleNegativesRankingLoss), and with --parts in two
passes (train.accumulation_steps; CachedMultipleNegativesRankingLoss), with dropout, clipping and
AdamW in float32. It prints the seconds of a step, median without the first, and the peak memory of
the process, and one JSON line.

Needs `pip install '.[parity]'` (PyTorch and sentence-transformers).
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vectors import SPECIAL, made_up_vocabulary

PROGRAMS = ('ours', 'theirs')


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--batch_size', type=int, default=256)
    parser.add_argument('--parts', type=int, default=0, help='of the two passes; 0: none')
    parser.add_argument('--seq', type=int, default=64, help='tokens of a text')
    parser.add_argument('--size', default='mini', help="of the model, as bert_jax's model.name")
    parser.add_argument('--steps', type=int, default=4)
    parser.add_argument('--program', choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument('--folder', type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def write_files(folder: Path, args: argparse.Namespace) -> None:
    """The model and the pairs, of words that are a piece each."""
    import random

    import bert_jax

    vocabulary = made_up_vocabulary()
    (folder / 'vocab.txt').write_text('\n'.join(vocabulary) + '\n')
    bert_jax.from_config(args.size, 'encoder', vocab_file=folder / 'vocab.txt').save(
        str(folder / 'model'))
    rng = random.Random(0)
    with (folder / 'pairs.csv').open('w', newline='') as file:
        writer = csv.writer(file)
        writer.writerow(['query', 'document'])
        for _ in range(args.batch_size * args.steps):
            texts = [' '.join(rng.choices(vocabulary[len(SPECIAL):], k=args.seq - 2))
                     for _ in range(2)]
            writer.writerow(texts)


def train_ours(args: argparse.Namespace) -> list[float]:
    """Seconds of each step after the first."""
    from bert_jax.main import main

    run = args.folder / 'run'
    pairs = args.folder / 'pairs.csv'
    few = args.folder / 'few.csv'
    few.write_text(''.join(pairs.read_text().splitlines(keepends=True)[:9]))
    main([
        'main', '--config=configs/retrieval.py', f'--config.init_checkpoint={args.folder}/model',
        f'--config.data.source={pairs}', f'--config.data.eval_source={few}',
        '--config.data.text=query', '--config.data.text_pair=document',
        f'--config.data.max_seq_length={args.seq}', f'--config.train.batch_size={args.batch_size}',
        f'--config.train.steps={args.steps}', '--config.train.log_every=1',
        f'--config.train.accumulation_steps={args.parts or 1}', '--config.train.eval_every=0',
        '--config.train.save_every=0', f'--workdir={run}'])
    records = map(json.loads, (run / 'metrics.jsonl').read_text().splitlines())
    seconds = [record['time/step'] for record in records if 'train/loss' in record]
    return [after - before for before, after in zip(seconds[:-1], seconds[1:], strict=True)]


def train_theirs(args: argparse.Namespace) -> list[float]:
    """Seconds of each step after the first."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses, modules

    encoder = modules.Transformer(str(args.folder / 'model'), max_seq_length=args.seq)
    pooling = modules.Pooling(encoder.get_embedding_dimension())
    model = SentenceTransformer(modules=[encoder, pooling], device='cpu').train()
    if args.parts:
        loss = losses.CachedMultipleNegativesRankingLoss(
            model, mini_batch_size=args.batch_size // args.parts)
    else:
        loss = losses.MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01, fused=True)
    with (args.folder / 'pairs.csv').open(newline='') as file:
        rows = list(csv.DictReader(file))
    seconds = []
    for start in range(0, len(rows), args.batch_size):
        began = time.perf_counter()
        batch = rows[start : start + args.batch_size]
        features = [model.preprocess([row[name] for row in batch])
                    for name in ('query', 'document')]
        loss(features, None).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


def main() -> None:
    args = parse_arguments()
    if args.program:
        seconds = {'ours': train_ours, 'theirs': train_theirs}[args.program](args)
        # Not getrusage's, which counts what the parent process held as well.
        status = dict(
            line.split(':', 1) for line in Path('/proc/self/status').read_text().splitlines())
        peak = int(status['VmHWM'].split()[0]) / 1024
        print(json.dumps({'seconds': seconds, 'peak_mib': peak}))
        return
    table: dict[str, dict[str, float]] = {}
    for parts in dict.fromkeys([0, args.parts]):
        for program in PROGRAMS:
            with tempfile.TemporaryDirectory() as folder:
                write_files(Path(folder), args)
                command = [
                    sys.executable, __file__, *sys.argv[1:], f'--parts={parts}',
                    f'--program={program}', f'--folder={folder}']
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True,
                                      env=os.environ | {'TOKENIZERS_PARALLELISM': 'false'})
            found = json.loads(done.stdout.splitlines()[-1])
            name = f'{program}, {parts} parts' if parts else program
            table[name] = {
                'seconds a step': statistics.median(found['seconds']), 'MiB': found['peak_mib']}
            print(f'{name}: {table[name]["seconds a step"]:.2f} s a step, '
                  f'{table[name]["MiB"]:,.0f} MiB', flush=True)
    print(json.dumps({'settings': vars(args) | {'folder': None}, 'results': table}))


if __name__ == '__main__':
    main()
