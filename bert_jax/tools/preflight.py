"""Says whether a pre-training run fits a TPU slice, how long it takes there and where time goes.

    python -m bert_jax.tools.preflight --config=configs/base_pretrain.py --topology=v5e:4x4
    python -m bert_jax.tools.preflight --config=configs/large_pretrain.py:lamb \\
        --topology=v5e:16x16 --json=after.json --against=before.json \\
        --config.train.accumulation_steps=16

No TPU and no data are needed: the train and evaluation steps that bert_jax.main would run are
compiled by TPUs' own compiler (libtpu, of the extra [tpu]) from shapes alone, some minutes a phase.
Topologies: v4, v5p (three dims, v4:4x4x4), v5e, v6e (two dims, v6e:16x16), counted in chips. The
vocabulary's size is that of config.data.vocab_file, or model.vocab_size, or data.vocab_size.

Cycles are the compiler's estimates, and no chip has run them: they are good for comparing.
Exit status: 0 all phases fit, 1 one does not, 2 bad flags or configuration.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags, logging

from bert_jax.config import ConfigDict
from bert_jax.config.command_line import define_config, parse_flags
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.faults import error_boundary
from bert_jax.runtime.files import Path, as_path, write_whole
from bert_jax.runtime.outputs import check_new_file
from bert_jax.tools.preflight_topology import open_topology


def define_flags(argv: list[str]) -> flags.FlagValues:
    """The flags of a command line: importing this file changes nothing."""
    f = flags.FlagValues()
    flags.DEFINE_boolean('help', False, 'Show this help.', flag_values=f)
    define_config(f, argv)
    flags.DEFINE_string('topology', '', 'Slice, such as v5e:16x16.', flag_values=f)
    flags.DEFINE_string('json', '', 'Also write everything to this file.', flag_values=f)
    flags.DEFINE_string(
        'against', '', 'A file that --json wrote: also say what changed.', flag_values=f
    )
    return f


def say(line: str) -> None:
    print(line, flush=True)


def without_data(config: ConfigDict) -> ConfigDict:
    """A completed copy of a config that reads no data: only the vocabulary's size is needed.

    Raises:
      InputError: not pre-training, or steps that only the data can tell.
    """
    from bert_jax import config as config_lib
    from bert_jax.config.tasks import task_fields
    from bert_jax.text import load_tokenizer
    from bert_jax.text.training import add_words
    from bert_jax.weights import load_weights

    if not task_fields(config.task).phased:
        raise InputError(
            f'config.task={config.task!r}: only pre-training is compiled ahead; the rows of a '
            'downstream task come in shapes that depend on its data'
        )
    for i, steps in enumerate([config.train.steps, *(p.get('steps', 0) for p in config.phases)]):
        if 'epoch' in str(steps):
            where = f'phases[{i - 1}].steps' if i else 'train.steps'
            raise InputError(
                f'config.{where}={steps!r} depends on the data, which is not read: write steps'
            )
    published = load_weights(config.init_checkpoint) if config.init_checkpoint else None
    c = config_lib.complete(config, published)
    with c.unlocked():
        if not c.model.vocab_size:
            c.model.vocab_size = c.data.vocab_size
            if c.data.vocab_file:
                tokenizer = load_tokenizer(c.data.vocab_file, c.data.lowercase)
                c.model.vocab_size = len(tokenizer.vocab)
                if c.data.add_tokens:
                    tokens, _ = add_words(c.data.vocab_file, c.data.add_tokens, c.data.lowercase)
                    c.model.vocab_size = len(tokens)
        c.task, c.init_checkpoint = 'synthetic', ''
    return c


def check(config: ConfigDict, topology: str) -> dict[str, Any]:
    """Compiles and measures all phases of a config on a topology.

    Returns:
      Plain values, as `--json` writes them.
    """
    from bert_jax.config.validation import validate
    from bert_jax.runtime.chips import find_chip
    from bert_jax.tools.preflight_measure import measure_phase, plan, smallest_change

    validate(config)
    config = without_data(config)
    devices = open_topology(topology)
    program = plan(config, devices)
    chip = find_chip(devices[0].device_kind)
    assert chip is not None, devices[0].device_kind
    measured = []
    for number in range(len(program.phases)):
        record = measure_phase(program, number, chip, say)
        if not record['fits']:
            record['change'] = smallest_change(config, program, record, number, say)
        measured.append(record)
    known = [record for record in measured if 'hours' in record]
    whole = len(known) == len(measured)
    return {
        'topology': topology, 'chips': len(devices), 'chip': chip.name,
        'mesh': dict(program.mesh.shape), 'model': config.model.name,
        'remat': config.model.remat, 'scan_layers': config.model.scan_layers,
        'versions': _versions(), 'date': datetime.date.today().isoformat(),
        'phases': measured, 'fits': all(record['fits'] for record in measured),
        'hours': sum(record['hours'] for record in known) if whole else None,
        'chip_hours': sum(record['chip_hours'] for record in known) if whole else None,
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in ('bert-jax', 'jax', 'jaxlib', 'libtpu', 'flax', 'optax'):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _is_record(path: Path) -> bool:
    """Whether a file is what an earlier run has written: that may be written anew."""
    try:
        return 'phases' in json.loads(path.read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def main(argv: Sequence[str]) -> None:
    """Parses flags, compiles, prints the tables and writes the JSON."""
    # Before jax is loaded: nothing runs here, and a TPU that is there is left alone.
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
    os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
    f: Any = define_flags(list(argv))
    with error_boundary():
        rest = parse_flags(list(argv), f)
        if f.help:
            print(__doc__)
            return
        if len(rest) > 1:
            raise InputError(f'unexpected argument {rest[1]!r}: flags are written --NAME=VALUE')
        if f.config is None:
            raise InputError('--config is missing: name a config file of pre-training')
        logging.set_verbosity(logging.ERROR)
        from bert_jax.tools.preflight_report import differences, tables

        if f.json and not _is_record(as_path(f.json)):
            check_new_file(f.json, '--json')
        before = None
        if f.against:
            try:
                before = json.loads(as_path(f.against).read_text())
            except (OSError, ValueError) as error:
                raise InputError(f'--against={f.against} cannot be read: {error}') from error
        record = {'config': f['config'].config_filename, 'arguments': list(argv)[1:]}
        record |= check(f.config, f.topology)
        if f.json:
            write_whole(f.json, json.dumps(record, indent=1) + '\n')
        say('\n' + tables(record))
        if before is not None:
            say('\n' + differences(before, record))
    sys.exit(0 if record['fits'] else 1)


if __name__ == '__main__':
    main(sys.argv)
