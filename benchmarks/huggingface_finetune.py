"""Fine-tuning on GLUE: bert_jax's training against Hugging Face's PyTorch BERT.

    python benchmarks/huggingface_finetune.py --model DIR --data glue --tasks mrpc,cola

It trains an epoch (or --steps of it) of each task as in configs/glue.py (batch 32, at most 128
tokens, float32), from one Hugging Face folder with weights and vocabulary. The peer gets the best
of its usual options: batches padded to their longest example, scaled dot-product attention, fused
AdamW, its fast tokenizer. Ours packs the examples of a step into rows. Both use dropout, clipping
and the schedule in every step, and train exactly 32 examples a step.

Each program has a process of its own with all cores, and one trains while the other waits: ours,
peer, peer, ours, and so on. Tokenization, start-up and compilation are not in these times but
reported separately; every measurement continues from the parameters of the one before. It prints a
table and one JSON line.

Needs `pip install torch==2.13.0 transformers` (the extra `parity` of setup.py). CPU only.
"""

import argparse
import datetime
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable

from worker import ROOT, Worker, serve


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--model', required=True, help='folder with weights and vocab.txt')
    parser.add_argument('--data', required=True, help="the benchmark's folder")
    parser.add_argument('--tasks', default='mrpc,cola')
    parser.add_argument('--rounds', type=int, default=2, help='measurements of each program')
    parser.add_argument('--steps', type=int, default=0, help='of a measurement; 0: an epoch')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--worker', choices=['ours', 'peer'], help=argparse.SUPPRESS)
    parser.add_argument('--task', help=argparse.SUPPRESS)
    return parser.parse_args()


Train = Callable[[], dict[str, float]]


def our_trainer(args: argparse.Namespace) -> Train:
    """Trains an epoch per call by this project, with the program and batches of `train_run`."""
    import dataclasses
    import importlib.util

    import jax

    from bert_jax.run_setup import open_mesh
    from bert_jax.tasks.opening import open_task
    from bert_jax.train.program import build_program, step_inputs
    from bert_jax.validation import complete
    from bert_jax.weights import load_weights
    from bert_jax.weights.warm_start import warm_start

    spec = importlib.util.spec_from_file_location('glue', ROOT / 'configs' / 'glue.py')
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config(args.task)
    config.init_checkpoint, config.data.source, config.seed = args.model, args.data, args.seed
    published = load_weights(args.model)
    config = complete(config, published)
    mesh = open_mesh(config, jax.devices())
    task = open_task(config)
    program = build_program(config, mesh, task)
    state = program.init(config.seed)
    state = dataclasses.replace(
        state, params=warm_start(
            published, state.params, program.head.config, head=task.head,
            labels=task.labels,
            vocab_file=task.vocab_path))
    numbers = step_inputs(program)
    phase = task.phase(program.head, program.eval_step, program.phases, 0, mesh)
    assert task.num_examples
    steps = args.steps or task.num_examples // phase.batch_size
    shapes = {b['input_ids'].shape: b for b in itertools.islice(phase.batches(0), steps)}
    for batch in shapes.values():  # compiles a step for each shape
        state, _ = program.train_step(state, numbers, batch)
    jax.block_until_ready(state)

    def train() -> dict[str, float]:
        nonlocal state
        metrics = []
        started = time.perf_counter()
        batches = phase.batches(0)
        processed = 0
        for _ in range(steps):
            batch = next(batches)
            processed += batch['input_ids'].size
            state, m = program.train_step(state, numbers, batch)
            metrics.append(m)
            if len(metrics) > 2:
                jax.block_until_ready(metrics[-3]['loss'])  # two steps in flight, as in training
        jax.block_until_ready(state)
        seconds = time.perf_counter() - started
        tokens = float(sum(m['tokens'] for m in metrics))
        return {'seconds': seconds, 'steps': steps, 'padding': 1 - tokens / processed,
                'loss': float(metrics[-1]['loss'])}

    return train


def peer_trainer(args: argparse.Namespace) -> Train:
    """Trains an epoch per call by Hugging Face."""
    import torch
    import transformers

    from bert_jax.tasks.glue import GLUE_TASKS, read_glue

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(args.seed)
    examples = read_glue(args.task, args.data, 'train')
    assert examples is not None and examples.labels is not None
    regression = not GLUE_TASKS[args.task].labels
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    assert tokenizer.is_fast
    encoded = tokenizer(*examples.texts, truncation=True, max_length=128)
    labels = torch.tensor(examples.labels, dtype=torch.float32 if regression else torch.int64)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        args.model, num_labels=len(GLUE_TASKS[args.task].labels) or 1, attn_implementation='sdpa',
    ).train()
    kept = ('bias', 'LayerNorm.weight')
    groups = [
        {'params': [p for n, p in model.named_parameters() if not n.endswith(kept)],
         'weight_decay': 0.01},
        {'params': [p for n, p in model.named_parameters() if n.endswith(kept)],
         'weight_decay': 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=5e-5, fused=True)
    steps = args.steps or len(labels) // 32
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, int(0.3 * steps), 10**6)  # any number of epochs may follow

    def train(steps: int = steps) -> dict[str, float]:
        order = torch.randperm(len(labels)).tolist()
        tokens = processed = 0
        started = time.perf_counter()
        for step in range(steps):
            chosen = order[32 * step : 32 * (step + 1)]
            batch = tokenizer.pad(
                {name: [encoded[name][i] for i in chosen] for name in encoded},
                return_tensors='pt')
            tokens += int(batch['attention_mask'].sum())
            processed += batch['input_ids'].numel()
            loss = model(**batch, labels=labels[chosen]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
        return {'seconds': time.perf_counter() - started, 'steps': steps,
                'padding': 1 - tokens / processed, 'loss': loss.item()}

    train(2)  # warm-up steps, as ours has
    return train


def compare(args: argparse.Namespace, task: str, folder: str) -> dict[str, object]:
    names = ('ours', 'peer')
    workers = {name: Worker(name, folder, f'--task={task}') for name in names}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for i in range(args.rounds):
        for name in names[:: 1 if i % 2 == 0 else -1]:
            runs[name].append(workers[name]())
    for worker in workers.values():
        worker.end()
    seconds = {name: [run['seconds'] for run in runs[name]] for name in names}
    ratio = statistics.median(p / o for p, o in zip(seconds['peer'], seconds['ours'], strict=True))
    for name in names:
        s, run = seconds[name], runs[name][0]
        print(f"{task:6} {name:5} {run['steps']:6} steps {statistics.median(s):8.1f} s "
              f"({min(s):.1f}-{max(s):.1f})  {100 * run['padding']:5.1f} % padding", flush=True)
    print(f'{task:6} peer / ours {ratio:.2f}', flush=True)
    return {'task': task, 'seconds': seconds, 'ratio': ratio, 'runs': runs,
            'preparation': {name: worker.preparation for name, worker in workers.items()}}


def main() -> None:
    args = parse_arguments()
    if args.worker:
        make = our_trainer if args.worker == 'ours' else peer_trainer

        def prepare() -> Callable[[str], dict[str, float]]:
            train = make(args)
            return lambda line: train()

        serve(args.worker, prepare)
        return
    import jax
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        results = [compare(args, task, folder) for task in args.tasks.split(',')]
    print(json.dumps({
        'results': results, 'seed': args.seed, 'date': datetime.date.today().isoformat(),
        'cores': len(os.sched_getaffinity(0)),
        'versions': {'jax': jax.__version__, 'torch': torch.__version__,
                     'transformers': transformers.__version__},
    }))


if __name__ == '__main__':
    main()
