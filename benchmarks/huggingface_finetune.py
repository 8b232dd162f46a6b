"""Fine-tuning on GLUE: bert_jax's training or Hugging Face's PyTorch BERT, one a process.

`python -m benchmarks.page` starts these programs. They train --steps of a task as in
configs/glue.py (batch 32, at most 128 tokens, float32), from one Hugging Face folder with weights
and vocabulary. The peer gets the best of its usual options: batches padded to their longest
example, scaled dot-product attention, fused AdamW, its fast tokenizer. Ours packs the examples of a
step into rows. Both use dropout, clipping and the schedule in every step, and train exactly 32
examples a step.

The program `examples` writes the examples for the peer, which so needs no part of this project, and
ends. Tokenization, start-up and compilation come before a program is ready; every measurement
continues from the parameters of the one before.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.worker import ROOT, make_parser, serve

PEER = 'padded to the longest'


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, ['examples', 'ours', PEER])
    parser.add_argument('--model', required=True, help='folder with weights and vocab.txt')
    parser.add_argument('--data', required=True, help="the benchmark's folder")
    parser.add_argument('--task', required=True)
    parser.add_argument('--steps', type=int, default=1, help='of a measurement')
    return parser.parse_args()


BATCH_SIZE = 32
SEED = 0
Result = dict[str, float]  # seconds, padding (its share of the tokens), loss


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
        config.seed = SEED
        published = load_weights(args.model)
        config = complete(config, published)
        mesh = open_mesh(config, jax.devices())
        task = open_task(config, prepare(config))
        self.program = build_program(config, mesh, task)
        self.inputs = step_inputs(self.program)
        self.rows = task.rows(self.program.head, self.program.phases, 0, mesh)
        self.steps = args.steps
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
        """Trains the steps of a measurement."""
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
            'seconds': seconds, 'padding': 1 - tokens / processed,
            'loss': float(metrics[-1]['loss'])}


class PeerTrainer:
    """Hugging Face, with its fast tokenizer and batches padded to their longest example."""

    def __init__(self, args: argparse.Namespace):
        import torch
        import transformers

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        torch.manual_seed(SEED)
        examples = json.loads(examples_file(args).read_text())
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
        assert self.tokenizer.is_fast
        self.encoded = self.tokenizer(*examples['texts'], truncation=True, max_length=128)
        num_labels = examples['num_labels']
        self.labels = torch.tensor(
            examples['labels'], dtype=torch.int64 if num_labels else torch.float32)
        self.model = transformers.AutoModelForSequenceClassification.from_pretrained(
            args.model, num_labels=num_labels or 1, attn_implementation='sdpa',
        ).train()
        self.optimizer = torch.optim.AdamW(parameter_groups(self.model), lr=5e-5, fused=True)
        self.steps = args.steps
        self.schedule = transformers.get_linear_schedule_with_warmup(
            self.optimizer, int(0.3 * self.steps), 10**6)  # any number of epochs may follow
        self._train(2)  # warm-up steps, as ours has

    def train(self) -> Result:
        """Trains the steps of a measurement."""
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
            'seconds': time.perf_counter() - started, 'padding': 1 - tokens / processed,
            'loss': loss.item()}

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


def write_examples(args: argparse.Namespace) -> None:
    """Writes the training examples beside the model, for the peer."""
    import numpy as np

    from bert_jax.tasks.glue import GLUE_TASKS, read_glue

    examples = read_glue(args.task, args.data, 'train')
    assert examples is not None and examples.labels is not None
    examples_file(args).write_text(json.dumps({
        'texts': [list(texts) for texts in examples.texts],
        'labels': np.asarray(examples.labels).tolist(),
        'num_labels': len(GLUE_TASKS[args.task].labels)}))


def examples_file(args: argparse.Namespace) -> Path:
    """What `write_examples` writes."""
    return Path(args.model, 'examples.json')


def prepare(args: argparse.Namespace) -> Callable[[], Result]:
    """A function that trains a measurement's steps."""
    trainer = OurTrainer(args) if args.program == 'ours' else PeerTrainer(args)
    return trainer.train


def main() -> None:
    args = parse_arguments()
    if args.program == 'examples':
        write_examples(args)
    else:
        serve(functools.partial(prepare, args))


if __name__ == '__main__':
    main()
