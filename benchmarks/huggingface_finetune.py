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
import dataclasses
import datetime
import functools
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

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


PROGRAMS = ('ours', 'peer')
BATCH_SIZE = 32
Result = dict[str, float]  # seconds, steps, padding (its share of the tokens), loss


class OurTrainer:
    """This project, with the program and batches of a run."""

    def __init__(self, args: argparse.Namespace):
        import jax

        from bert_jax.completion import complete
        from bert_jax.config.command_line import load_config
        from bert_jax.corpus.preparing import prepare
        from bert_jax.foreign import load_weights
        from bert_jax.run_setup import open_mesh
        from bert_jax.tasks.opening import open_task
        from bert_jax.train.program import build_program, step_inputs
        from bert_jax.weights.warm_start import warm_start

        config = load_config(f'{ROOT}/configs/glue.py:{args.task}')
        config.init_checkpoint = args.model
        config.data.source = args.data
        config.seed = args.seed
        published = load_weights(args.model)
        config = complete(config, published)
        mesh = open_mesh(config, jax.devices())
        task = open_task(config, prepare(config))
        assert task.num_examples
        self.program = build_program(config, mesh, task)
        self.inputs = step_inputs(self.program)
        self.rows = task.rows(self.program.head, self.program.phases, 0, mesh)
        self.steps = args.steps or task.num_examples // config.train.batch_size
        state = self.program.init(config.seed)
        params = warm_start(
            published, state.params, self.program.head.config, head=task.head,
            labels=task.labels, vocab_file=task.vocab_path)
        self.state = dataclasses.replace(state, params=params)
        self._compile()

    def _compile(self) -> None:
        """Runs a step for each shape of batches."""
        import jax

        batches = {}
        for batch in itertools.islice(self.rows.batches(0), self.steps):
            batches[batch['input_ids'].shape] = batch
        for batch in batches.values():
            self.state, _ = self.program.steps[0].train(self.state, self.inputs, batch)
        jax.block_until_ready(self.state)

    def train(self) -> Result:
        """Trains an epoch, or the steps that were asked for."""
        import jax

        metrics = []
        started = time.perf_counter()
        batches = self.rows.batches(0)
        processed = 0
        for _ in range(self.steps):
            batch = next(batches)
            processed += batch['input_ids'].size
            self.state, of_step = self.program.steps[0].train(self.state, self.inputs, batch)
            metrics.append(of_step)
            if len(metrics) > 2:
                jax.block_until_ready(metrics[-3]['loss'])  # two steps in flight, as in training
        jax.block_until_ready(self.state)
        seconds = time.perf_counter() - started
        tokens = float(sum(of_step['tokens'] for of_step in metrics))
        return {
            'seconds': seconds, 'steps': self.steps, 'padding': 1 - tokens / processed,
            'loss': float(metrics[-1]['loss']),
        }


class PeerTrainer:
    """Hugging Face, with its fast tokenizer and batches padded to their longest example."""

    def __init__(self, args: argparse.Namespace):
        import torch
        import transformers

        from bert_jax.tasks.glue import GLUE_TASKS, read_glue

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        torch.manual_seed(args.seed)
        examples = read_glue(args.task, args.data, 'train')
        assert examples is not None and examples.labels is not None
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
        assert self.tokenizer.is_fast
        self.encoded = self.tokenizer(*examples.texts, truncation=True, max_length=128)
        names = GLUE_TASKS[args.task].labels
        self.labels = torch.tensor(
            examples.labels, dtype=torch.int64 if names else torch.float32)
        self.model = transformers.AutoModelForSequenceClassification.from_pretrained(
            args.model, num_labels=len(names) or 1, attn_implementation='sdpa',
        ).train()
        self.optimizer = torch.optim.AdamW(parameter_groups(self.model), lr=5e-5, fused=True)
        self.steps = args.steps or len(self.labels) // BATCH_SIZE
        self.schedule = transformers.get_linear_schedule_with_warmup(
            self.optimizer, int(0.3 * self.steps), 10**6)  # any number of epochs may follow
        self._train(2)  # warm-up steps, as ours has

    def train(self) -> Result:
        """Trains an epoch, or the steps that were asked for."""
        return self._train(self.steps)

    def _train(self, steps: int) -> Result:
        import torch

        order = torch.randperm(len(self.labels)).tolist()
        tokens = processed = 0
        started = time.perf_counter()
        for step in range(steps):
            chosen = order[BATCH_SIZE * step : BATCH_SIZE * (step + 1)]
            batch = self._batch(chosen)
            tokens += int(batch['attention_mask'].sum())
            processed += batch['input_ids'].numel()
            loss = self.model(**batch, labels=self.labels[chosen]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad(set_to_none=True)
        return {
            'seconds': time.perf_counter() - started, 'steps': steps,
            'padding': 1 - tokens / processed, 'loss': loss.item(),
        }

    def _batch(self, chosen: list[int]) -> Any:
        """The examples with these numbers, padded to the longest."""
        examples = {}
        for name, values in self.encoded.items():
            examples[name] = [values[number] for number in chosen]
        return self.tokenizer.pad(examples, return_tensors='pt')


def parameter_groups(model: Any) -> list[dict[str, Any]]:
    """BERT's: biases and LayerNorm weights do not decay."""
    decayed = []
    kept = []
    for name, parameter in model.named_parameters():
        group = kept if name.endswith(('bias', 'LayerNorm.weight')) else decayed
        group.append(parameter)
    return [{'params': decayed, 'weight_decay': 0.01}, {'params': kept, 'weight_decay': 0.0}]


def compare(args: argparse.Namespace, task: str, folder: str) -> dict[str, object]:
    """Measures both programs on a task in turn, and prints and returns the results."""
    workers = {name: Worker(name, folder, f'--task={task}') for name in PROGRAMS}
    runs: dict[str, list[Result]] = {name: [] for name in PROGRAMS}
    for number in range(args.rounds):
        order = PROGRAMS if number % 2 == 0 else PROGRAMS[::-1]
        for name in order:
            runs[name].append(workers[name]())
    for worker in workers.values():
        worker.end()
    seconds = {}
    for name, results in runs.items():
        taken = [result['seconds'] for result in results]
        seconds[name] = taken
        first = results[0]
        print(f"{task:6} {name:5} {first['steps']:6} steps {statistics.median(taken):8.1f} s "
              f"({min(taken):.1f}-{max(taken):.1f})  {100 * first['padding']:5.1f} % padding",
              flush=True)
    ratio = statistics.median(
        peer / ours for peer, ours in zip(seconds['peer'], seconds['ours'], strict=True))
    print(f'{task:6} peer / ours {ratio:.2f}', flush=True)
    return {
        'task': task, 'seconds': seconds, 'ratio': ratio, 'runs': runs,
        'preparation': {name: worker.preparation for name, worker in workers.items()},
    }


def prepare(args: argparse.Namespace) -> Callable[[str], Result]:
    """A function that trains a measurement's steps; the line that asks for it has no meaning."""
    trainer = OurTrainer(args) if args.worker == 'ours' else PeerTrainer(args)
    return lambda line: trainer.train()


def main() -> None:
    args = parse_arguments()
    if args.worker:
        serve(args.worker, functools.partial(prepare, args))
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
