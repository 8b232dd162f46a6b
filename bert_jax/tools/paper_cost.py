"""What the parts of a table will cost on TPUs, before they are begun."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from bert_jax.config.durations import parse_duration
from bert_jax.heads.tagging import FeatureTagging, Tagging
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.chips import CHIPS
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path
from bert_jax.tools.paper_parts import Part, identity
from bert_jax.tools.paper_tables import TASKS

_EFFICIENCY = 0.4  # of a chip's peak, where no pre-training is compiled that would say


def print_cost(parts: Sequence[Part], root: Path, topology: str) -> float:
    """Prints what the unfinished parts will cost; the chip-hours in all.

    Pre-training is compiled by `tools.preflight`, each shape once; its answers are kept in the
    directory. Fine-tuning is reckoned by its FLOPs, on rows of full length, at the efficiency that
    the compiler's estimate has there.

    Raises:
      InputError: there is no such topology, or a pre-training does not fit it.
    """
    total, efficiency = 0.0, _EFFICIENCY
    chip = next((chip for chip in CHIPS if chip.name == topology.partition(':')[0]), None)
    if chip is None:
        raise InputError(f'--topology={topology}: write a slice such as v5e:4x4')
    for part in parts:
        left = len(part.folder.unfinished())
        if not left:
            continue
        if part.kind.startswith('pre-training'):
            record = _preflight(part, root, topology)
            hours = record['chip_hours']
            first = record['phases'][0]
            efficiency = first['floor_cycles_per_sequence'] / first['cycles_per_sequence']
        else:
            hours = _flops(part) / (chip.peak_flops * efficiency) / 3600
        total += hours * left
        print(f'{part.title}: {left} run(s), {hours * left:,.1f} chip-hours', flush=True)
    print(f'in all about {total:,.0f} chip-hours of {topology}', flush=True)
    return total


def _preflight(part: Part, root: Path, topology: str) -> dict:
    """What `tools.preflight --json` says of a part's config; of equal shapes it is asked once."""
    shape = {name: x for name, x in identity(part.resolved, root).items()
             if not name.startswith(('data.', 'optimizer.')) or name.startswith('data.max_')}
    shape |= {'topology': topology, 'optimizer': part.resolved.optimizer.name,
              'mesh': part.resolved.mesh.to_dict()}
    known = json.dumps(shape, sort_keys=True)
    path = root / 'preflight' / f'{hashlib.sha256(known.encode()).hexdigest()[:12]}.json'
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        process = subprocess.run(
            [sys.executable, '-m', 'bert_jax.tools.preflight', f'--config={part.config}',
             *part.overrides, f'--topology={topology}', f'--json={path}'],
            capture_output=True, text=True, check=False,
        )
        if not path.exists():
            said = process.stderr.strip().splitlines() or [f'it ended with {process.returncode}']
            raise InputError(f'{part.title}: tools.preflight: {said[-1]}')
    record: dict = json.loads(path.read_text())
    if record['chip_hours'] is None or not record['fits']:
        raise InputError(
            f'{part.title} does not fit {topology} ({path} says what it takes): give another '
            '--topology, or --pretrain train.accumulation_steps=N'
        )
    return record


def _flops(part: Part) -> float:
    """Of a downstream run: its epochs over the official training set, at full length."""
    config, task = part.resolved, TASKS[part.kind]
    steps = parse_duration(
        config.train.steps, 'train.steps', batch_size=config.train.batch_size,
        num_examples=task.examples, total=None,
    )
    sizes: Any = part.sizes
    bert = ModelConfig(vocab_size=1, bilstm=bool(config.model.bilstm), **sizes)
    features = config.conll.features if config.task == 'conll' else ''
    objective = FeatureTagging(bert, 1, features) if features else Tagging(bert, 1)
    return steps * config.train.batch_size * task.tokens * objective.token_flops(task.tokens)
