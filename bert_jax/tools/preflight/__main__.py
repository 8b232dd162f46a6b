"""Predicts whether a run fits TPUs or GPUs, how long it takes and where time goes.

    python -m bert_jax.tools.preflight --config=configs/base_pretrain.py \\
        --topology=v5e:2x2,v5e:4x4,v4:2x2x4 --price=v5e=1.2,v4=3.22
    python -m bert_jax.tools.preflight --config=configs/large_pretrain.py:lamb \\
        --topology=v5e:16x16 --json=after.json --config.train.accumulation_steps=16
    python -m bert_jax.tools.preflight --config=configs/base_pretrain.py --topology=v5e:16x16 --best
    python -m bert_jax.tools.preflight --config=configs/base_pretrain.py --topology=h100:1,a100:8
    python -m bert_jax.tools.preflight --config=configs/classification.py --topology=v5e:1x1 \\
        --config.init_checkpoint=DIR --config.data.source=train.csv --config.adapter.rank=8

For each slice or host it prints a line that begins with the verdict, and below it what to change if
a phase does not fit or is far from the chips' peak. --verbose also prints memory, time and messages
by kind. It needs no TPU, GPU or driver: the TPU compiler (libtpu, in the extra [tpu]), or jax's
CUDA plugin (in the extra [cuda]), compiles the train and evaluation steps of bert_jax.main from
shapes, in a few minutes per phase. Pre-training needs no data: the vocabulary's size is
model.vocab_size, or that of config.data.vocab_file, or data.vocab_size. Fine-tuning reads its data,
as these decide how long its rows are; its largest step is compiled, and no evaluation.
TPUs are given in chips: v4, v5p and tpu7x (three dims, v4:4x4x4), v5e and v6e (two dims,
v6e:16x16). A TPU7x is two devices: its memory and rows are counted for each of them, chip-hours and
prices for the chip. GPUs are the cards of one host: a100, a100-40gb, h100, h200 and b200, 1 to 8 of
them (h100:8).
--save_programs keeps what the compiler wrote, and --programs prices it again in seconds.

Cycles of TPUs come from the compiler's estimates and schedules and are not measured on a chip: use
them to compare programs. For GPUs, kernels and their bytes are counted; times are estimates.
Exit status: 0 all phases fit on all slices (--best: on one mesh), 1 one does not, 2 bad flags
or configuration.
"""

import json
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags

from bert_jax.config import ConfigDict
from bert_jax.config.command_line import parse_command
from bert_jax.config.fields import pretraining_kind
from bert_jax.run_setup import open_mesh
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import check_new_file, temporary_folder, write_whole
from bert_jax.runtime.hosts import say
from bert_jax.runtime.process import error_boundary
from bert_jax.sharding import Mesh, make_mesh
from bert_jax.tools.preflight.cards import is_card
from bert_jax.tools.preflight.measure import Record, completed_with_task, measure
from bert_jax.tools.preflight.report import tables, verdict
from bert_jax.tools.preflight.saved import Programs
from bert_jax.tools.preflight.schedules import write_schedules
from bert_jax.tools.preflight.topology import known_topologies, open_topology
from bert_jax.validation import validate

_HOW_FAR_OFF_CHIPS = (
    "TPUs: bytes are the compiler's own. Hours are not confirmed by a chip: the lower are by its "
    'final schedules, where messages overlap computation as they do there, the higher by its '
    'estimates, with no overlap. Evaluation, saving and waiting for data come on top.')
_HOW_FAR_OFF_CARDS = (
    "GPUs: bytes and kernels are the compiler's own. Times are estimates: products at 66 % of the "
    'peak, all else at 89 % of the bandwidth, as an H100 reached. There, six steps took 0.99 '
    'to 1.09 times the estimate, with other kernels of attention and gelu than now. No other card, '
    'and no message between cards, was measured. '
    'Evaluation, saving and waiting for data come on top.')
_HOW_FAR_OFF_FINE_TUNING = (
    'Fine-tuning: every step counts as the largest, and predictions are not compiled.')


def main(argv: Sequence[str]) -> None:
    """Parses flags, compiles, prints the tables and writes the JSON."""
    _leave_accelerators_free()
    options = _define_flags()
    with error_boundary(), temporary_folder() as folder:
        write_schedules(folder)
        config, file = parse_command(argv, __doc__ or '', options)
        if not options.topology:
            raise InputError(f'--topology is missing: name {known_topologies()}')
        if options.json:
            check_new_file(options.json, '--json', unless='topology')
        validate(config)
        config, task = completed_with_task(config)
        programs = _programs(options)
        slices = options.topology.split(',')
        # Read first: a wrong price is refused before anything is compiled.
        prices = _read_prices(options.price, {_chip_of(name) for name in slices})
        records = []
        for name, mesh in _open_meshes(config, slices, with_variants=options.best).items():
            record: Record = {
                'config': file, 'arguments': list(argv[1:]), 'topology': name}
            record |= measure(config, task, mesh, folder, programs)
            price = prices[_chip_of(name)]
            if price is not None and record['chip_hours']:
                record['dollars'] = record['chip_hours'] * price
            records.append(record)
        if options.best:
            records.sort(key=_fastest_first)
        whole = _join(records, options.topology, any_fits=options.best)
        if options.json:
            write_whole(options.json, json.dumps(whole, indent=1) + '\n')
        if options.verbose:
            say(''.join(f'\n{tables(record)}\n' for record in records))
        lines = [*map(verdict, records), *_how_far_off(slices)]
        if not pretraining_kind(config.task):
            lines.append(_HOW_FAR_OFF_FINE_TUNING)
        say('\n' + '\n'.join(lines))
    sys.exit(0 if whole['fits'] else 1)


def _how_far_off(slices: Sequence[str]) -> list[str]:
    """A line for each kind of topology on how far to trust the figures."""
    kinds = {is_card(_chip_of(name)) for name in slices}
    lines = {False: _HOW_FAR_OFF_CHIPS, True: _HOW_FAR_OFF_CARDS}
    return [lines[kind] for kind in sorted(kinds)]


def _leave_accelerators_free() -> None:
    """Leaves a TPU or GPU of this machine to others, as nothing is computed here."""
    if not os.environ.get('JAX_PLATFORMS'):
        jax.config.update('jax_platforms', 'cpu')
    os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
    os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')


def _define_flags() -> Any:
    """The flags other than --config, to be parsed."""
    result = flags.FlagValues()
    flags.DEFINE_string(
        'topology', '', 'Slices or hosts, such as v5e:4x4,h100:8.', flag_values=result)
    flags.DEFINE_string('json', '', 'Also write everything to this file.', flag_values=result)
    flags.DEFINE_string(
        'price', '', 'Dollars a chip-hour: 1.2, or v5e=1.2,v4=3.2.', flag_values=result)
    flags.DEFINE_boolean(
        'best', False, 'Also try half, two and four times the mesh.fsdp of a run, and print the '
        'fastest first.', flag_values=result)
    flags.DEFINE_string(
        'save_programs', '', 'Keep the compiled programs in this folder.', flag_values=result)
    flags.DEFINE_string(
        'programs', '', 'Read programs that --save_programs kept, and compile nothing.',
        flag_values=result)
    flags.DEFINE_boolean('verbose', False, 'Also print the tables.', flag_values=result)
    return result


def _programs(options: Any) -> Programs | None:
    """Where compiled programs are kept or read; None if no flag says so."""
    if options.programs and options.save_programs:
        raise InputError(
            f'--programs={options.programs} --save_programs={options.save_programs}: what is read '
            'is not compiled, so there is nothing to keep; write one of the two')
    if options.programs:
        return Programs(options.programs, reads=True)
    if options.save_programs:
        return Programs(options.save_programs, reads=False)
    return None


def _chip_of(topology: str) -> str:
    """v5e of v5e:4x4."""
    return topology.partition(':')[0]


def _read_prices(text: str, chips: set[str]) -> dict[str, float | None]:
    """Dollars of a chip-hour of these kinds of chips, from --price; None if no price is given."""
    if not text:
        return dict.fromkeys(chips)
    by_chip = {}
    for entry in text.split(','):
        chip, _, price = entry.rpartition('=')
        by_chip[chip] = price
    prices: dict[str, float | None] = {}
    for chip in chips:
        try:
            dollars = float(by_chip.get(chip, by_chip.get('', 'missing')))
        except ValueError:
            dollars = math.nan
        if not 0 <= dollars < math.inf:  # true for NaN
            raise InputError(
                f'--price={text}: write dollars a chip-hour, such as 1.2 or {chip}=1.2')
        prices[chip] = dollars
    return prices


def _open_meshes(
    config: ConfigDict, slices: Sequence[str], with_variants: bool
) -> dict[str, Mesh]:
    """The meshes to measure by what to call them, slice after slice.

    Args:
      config: completed.
      slices: topologies.
      with_variants: also has the meshes with half, two and four times `mesh.fsdp`.
    """
    meshes = {}
    for name in slices:
        devices = open_topology(name)
        mesh = open_mesh(config, devices)
        meshes[name] = mesh
        if not with_variants:
            continue
        data, fsdp, tensor = mesh.shape.values()
        for size in (fsdp // 2, 2 * fsdp, 4 * fsdp):
            if size == 0 or data * fsdp % size:
                continue
            others = data * fsdp // size
            variant = f'{name}, config.mesh.fsdp={size}'
            if config.mesh.data != -1:
                variant += f', config.mesh.data={others}'
            meshes[variant] = make_mesh(others, size, tensor, devices)
    return meshes


def _fastest_first(record: Record) -> tuple[bool, float]:
    """A key to sort records by."""
    return not record['fits'], record['hours'] or math.inf


def _join(records: Sequence[Record], topology: str, any_fits: bool) -> Record:
    """The content of the JSON: the only record, or all.

    Args:
      records: of all slices.
      topology: --topology.
      any_fits: several records fit if any of them does, not only if all do.
    """
    if len(records) == 1:
        return records[0]
    fit = [record['fits'] for record in records]
    return {
        'topology': topology, 'slices': list(records), 'fits': any(fit) if any_fits else all(fit)}


if __name__ == '__main__':
    main(sys.argv)
