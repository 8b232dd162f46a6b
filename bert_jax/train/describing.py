"""The description of a run for `config.json`, and whether the run can start with it there."""

import json
import zlib
from typing import Any

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.config.durations import parse_trace
from bert_jax.config.fields import field_of, flat_fields
from bert_jax.run import resume_checks
from bert_jax.run.description import read_config
from bert_jax.run.layout import STATE, is_described, step_to_read
from bert_jax.runtime import files, hosts
from bert_jax.runtime.errors import InputError
from bert_jax.train.program import Program


def describe(program: Program) -> dict[str, Any]:
    """The description for `config.json`, before it is compared with the run in the directory."""
    config, task = program.config, program.task
    description = resolve(config, program.phases, task.vocab_size)
    description |= {
        'head': task.head, 'labels': list(task.labels), 'metric': task.metric,
        'inference': dict(task.inference), 'identity': task.identity(),
    }
    if program.own_file is not None:
        description['config_file'] = program.own_file.record()
    description |= _init_checkpoint_record(config.init_checkpoint, program.init_weights)
    # What was resolved, which must be the same on all hosts.
    description['model']['attention'] = program.head.config.attention
    return description


def resolve(config: ConfigDict, phases: list[dict[str, Any]], vocab_size: int) -> dict[str, Any]:
    """The config as plain values with everything filled in."""
    resolved = json.loads(config.to_json_best_effort())
    resolved['model'] |= config_lib.model_sizes(config)
    resolved['model']['vocab_size'] = config.model.vocab_size or vocab_size
    resolved['phases'] = phases
    resolved['train']['steps'] = sum(phase['steps'] for phase in phases)
    return resolved


def _init_checkpoint_record(init_checkpoint: str, weights: Any) -> dict[str, int]:
    """Which save of `init_checkpoint` a run starts from: that may train on, or be made anew.

    Args:
      init_checkpoint: of the config.
      weights: of `init_checkpoint`. A run that resumes has none, or their description. For it, the
        record is of the save that would be read now, to be compared with the run's own record.
    """
    if not init_checkpoint:
        return {}
    if weights is not None and weights.params:
        step_dir = weights.step_dir
    else:
        step_dir = step_to_read(files.as_path(init_checkpoint))
    if step_dir is None:
        return {}
    record = {'init_step': int(step_dir.name)}
    manifest = step_dir / STATE / 'manifest.ocdbt'  # differs for each save
    if manifest.exists():
        record['init_saved'] = zlib.crc32(manifest.read_bytes())
    return record


def adapter_base(program: Program, workdir: files.Path) -> str:
    """The base model of an adapter that this run continues to train; '' if it continues none.

    Args:
      program: of the run.
      workdir: of the run; if it resumes, config.json there names the base.
    """
    weights = program.init_weights
    if weights is None or not weights.params:  # it resumes
        return str(read_config(workdir).get('adapter_base') or '') if is_described(workdir) else ''
    adapter = weights.adapter
    if adapter is None or not adapter.options.has_parameters_of(program.head.config.adapter):
        return ''
    return adapter.base


def check_start(program: Program, workdir: files.Path, description: dict[str, Any]) -> None:
    """Checks that all hosts have the same run, and that it can start or resume in its directory.

    Settings that come too late for the run in the directory are reset in `description`.

    Raises:
      InputError: it cannot.
    """
    traced_steps(program)  # refuses a trace beyond the end
    facts = {}
    for name, value in flat_fields(description).items():
        field = field_of(name)
        is_free_path = field.allowed == 'path' and field.is_silent(program.config.task)
        if not is_free_path:  # what is there is the same, and `identity` compares it
            facts[name] = value
    hosts.agree('the run', facts)
    task = program.task
    resume_checks.check_resumable(workdir, description, task.vocab_path, comparable=task.keeps_best)
    resume_checks.record_code(workdir, description)
    resume_checks.check_shared(workdir)


def traced_steps(program: Program) -> tuple[int, int] | None:
    """The first and the last step that this host traces, if any."""
    trace = parse_trace(program.config.train.profile, 'train.profile', program.num_steps)
    if trace is None:
        return None
    steps, traced_hosts = trace
    if max(traced_hosts) >= hosts.count():
        raise InputError(f'config.train.profile={program.config.train.profile!r}: there is no host '
                         f'{max(traced_hosts)}, the run has {hosts.count()}, counted from 0')
    return steps if hosts.index() in traced_hosts else None
