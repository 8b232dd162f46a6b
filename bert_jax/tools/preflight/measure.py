"""What a run takes on a mesh: its steps are compiled, and the programs and memory are read."""

import dataclasses
import time
from typing import Any

import jax

from bert_jax.completion import complete
from bert_jax.config import ConfigDict
from bert_jax.config.fields import pretraining_kind
from bert_jax.corpus.extending import extend
from bert_jax.corpus.preparing import prepare
from bert_jax.corpus.trainers import Wanted, size_to_train
from bert_jax.foreign import load_weights
from bert_jax.runtime.chips import Chip, find_chip
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.hosts import say
from bert_jax.sharding import Mesh
from bert_jax.tasks.opening import open_task
from bert_jax.tasks.pretrain import step_flops
from bert_jax.text.kinds import load_tokenizer
from bert_jax.tools.preflight.cards import (
    COMPILER_OPTIONS,
    Switch,
    is_card,
    memory_limit,
    open_switch,
)
from bert_jax.tools.preflight.cycles import step_cycles
from bert_jax.tools.preflight.hlo import CompiledText
from bert_jax.tools.preflight.hours import other_hours, step_hours, total_hours
from bert_jax.tools.preflight.kernels import step_time
from bert_jax.tools.preflight.links import Network, open_network
from bert_jax.tools.preflight.messages import collectives, find_messages, waiting_seconds
from bert_jax.tools.preflight.saved import CompiledPhase, Programs
from bert_jax.tools.preflight.schedules import Schedule, take_schedules
from bert_jax.train.compiling import Memory, compile_step, device_bytes
from bert_jax.train.program import Program, build_program, steps_with_shapes
from bert_jax.train.task import Task

Record = dict[str, Any]


def completed_with_task(config: ConfigDict) -> tuple[ConfigDict, Task]:
    """A completed copy of a config, and its task.

    Pre-training is on random tokens (`without_data`). The rows of a downstream task depend on its
    data, which are read, as is `init_checkpoint`.

    Raises:
      InputError: bad data; or, of pre-training, the number of steps depends on the data.
    """
    if pretraining_kind(config.task):
        completed = without_data(config)
        return completed, open_task(completed, None)
    weights = None
    if config.init_checkpoint:
        weights = load_weights(config.init_checkpoint, own_head=True, keep_adapter=True)
    completed = complete(config, weights)
    return completed, open_task(completed, prepare(completed))


def without_data(config: ConfigDict) -> ConfigDict:
    """A completed copy of a config of pre-training that reads no data except the vocabulary.

    Raises:
      InputError: the number of steps depends on the data.
    """
    kind = pretraining_kind(config.task)
    _check_steps(config)
    published = load_weights(config.init_checkpoint) if config.init_checkpoint else None
    result = complete(config, published)
    with result.unlocked():
        if not result.model.vocab_size:
            result.model.vocab_size = _vocab_size(result)
        result.task = f'synthetic{config.task.removeprefix(kind)}'
        result.init_checkpoint = ''
    return result


def _check_steps(config: ConfigDict) -> None:
    steps = {'train.steps': config.train.steps}
    for number, phase in enumerate(config.phases):
        steps[f'phases[{number}].steps'] = phase.get('steps', 0)
    for name, value in steps.items():
        if 'epoch' in str(value):
            raise InputError(
                f'config.{name}={value!r} depends on the data, which is not read: write steps')


def _vocab_size(config: ConfigDict) -> int:
    """The size of the vocabulary that a run would read or train."""
    data = config.data
    if not data.vocab_file:
        return size_to_train(Wanted(data.tokenizer, data.vocab_size, data.lowercase))
    if data.add_tokens:
        return extend(data.vocab_file, data.add_tokens, data.lowercase).num_tokens
    return len(load_tokenizer(data.vocab_file, data.lowercase).vocab.tokens)


def measure(
    config: ConfigDict, task: Task, mesh: Mesh, folder: str, programs: Programs | None = None
) -> Record:
    """A record of what a run takes, as plain values; without the fields that name the run.

    Args:
      config, task: from `completed_with_task`.
      mesh: of devices that may be a topology's.
      folder: where the compiler writes schedules (`write_schedules`).
      programs: where compiled phases are kept, or read from instead.

    Raises:
      InputError: a phase cannot be read from `programs`.
    """
    measurer = _measurer(config, task, mesh, folder, programs)
    program = measurer.program
    chip = measurer.chip
    num_chips = mesh.size // chip.num_devices
    phases = []
    for number, phase in enumerate(program.phases):
        compiled = measurer.compiled(phase, number)
        phases.append(measurer.record(phase, number, compiled))
    hours = chip_hours = None
    times: Record = {}
    if all('hours' in phase for phase in phases):
        others = other_hours(program, phases)
        hours = total_hours(phases, others)
        chip_hours = hours * num_chips
        times = {'step_hours': step_hours(phases)._asdict(), 'other_hours': others}
    return {
        'chips': num_chips, 'devices': mesh.size, 'chip': chip.name, 'mesh': dict(mesh.shape),
        'versions': compiled.versions, 'date': compiled.date,
        'phases': phases, 'fits': all(phase['fits'] for phase in phases),
        'hours': hours, 'chip_hours': chip_hours, **times,
    }


def measure_train_step(config: ConfigDict, mesh: Mesh, folder: str = '') -> Record:
    """Figures of a phase's record, of its train step alone: nothing else is compiled.

    On TPUs it has `cycles_without_schedules_per_sequence` too, for which kernels in Pallas, of
    which the compiler makes no estimate, take the time that their bytes do.

    Args:
      config: from `without_data`; its first phase counts.
      mesh: of devices that may be a topology's.
      folder: where the compiler writes schedules (`write_schedules`), which takes most of its time;
        '': nowhere. Of TPUs there is no other figure of cycles then.

    Raises:
      InputError: the step does not fit.
    """
    measurer = _measurer(config, open_task(config, None), mesh, folder, None)
    phase = measurer.program.phases[0]
    train = measurer.compile_step(0, 'train')[0]
    if train is None:
        raise InputError(f'{_name(phase, 0)} does not fit {mesh.size} x {measurer.chip.name}')
    text = CompiledText(train.as_text())
    flops = step_flops(measurer.program.head, phase) / phase['batch_size']
    if is_card(measurer.chip.name):
        return measurer.card_time_record(phase, text, flops)
    estimated = measurer.time_record(phase, text, {}, flops)['cycles_per_sequence']
    record = {'cycles_without_schedules_per_sequence': estimated}
    if folder:
        record |= measurer.time_record(phase, text, take_schedules(folder), flops)
    return record


def _measurer(
    config: ConfigDict, task: Task, mesh: Mesh, folder: str, programs: Programs | None
) -> '_PhaseMeasurer':
    program = build_program(config, mesh, task)
    chip = find_chip(mesh.devices.flat[0].device_kind)
    network: Network | Switch
    if is_card(chip.name):
        network = open_switch(chip.name, mesh.size)
        limit = memory_limit(chip)
    else:
        network = open_network(chip.name, list(mesh.devices.flat))
        limit = chip.memory_bytes
    return _PhaseMeasurer(program, chip, network, limit, folder, programs)


@dataclasses.dataclass
class _PhaseMeasurer:
    """Compiles the steps of a program's phases and reads memory, time and messages.

    Attributes:
      program: of the run.
      chip: the kind of chip.
      network: the chips and their links.
      limit: bytes of a device that a program can use.
      folder: where the compiler writes schedules.
      programs: where compiled phases are kept, or read from instead; None: nowhere.
    """

    program: Program
    chip: Chip
    network: Network | Switch
    limit: int
    folder: str
    programs: Programs | None
    # Schedules by the text of the train step: a step that equals that of an earlier phase is not
    # compiled again, so the compiler writes none for it.
    _schedules: dict[str, dict[str, Schedule]] = dataclasses.field(default_factory=dict)

    def record(self, phase: Record, number: int, compiled: CompiledPhase) -> Record:
        """A record of a phase, whose number counts from 0, and its compiled steps."""
        flops = self._sequence_flops(phase, number)
        record = phase | {'name': _name(phase, number)}
        record |= self._memory_record(number, compiled, flops)
        if not compiled.text:
            return record
        text = CompiledText(compiled.text)
        if is_card(self.chip.name):
            return record | self.card_time_record(phase, text, flops)
        if not compiled.schedules:
            say('  the compiler wrote no schedules: all cycles are its estimates')
        return record | self.time_record(phase, text, compiled.schedules, flops)

    def compiled(self, phase: Record, number: int) -> CompiledPhase:
        """The compiled steps of a phase, whose number counts from 0.

        Raises:
          InputError: they are to be read from files, and cannot be.
        """
        if self.programs is None:
            return self._compile(number)
        of_chips = 'x'.join(map(str, self.network.shape))
        of_mesh = 'x'.join(map(str, self.program.mesh.shape.values()))
        file_name = f'{self.chip.name}-{of_chips}-{of_mesh}-phase{number + 1}'
        run = {
            'max_seq_length': phase['max_seq_length'], 'batch_size': phase['batch_size'],
            'bytes_of_state': device_bytes(self.program.state),
            'bytes_of_batch': device_bytes(self._batch(number))}
        if self.programs.reads:
            return self.programs.read(file_name, run)
        result = self._compile(number)
        self.programs.write(file_name, run, result)
        return result

    def _compile(self, number: int) -> CompiledPhase:
        train, train_memory = self.compile_step(number, 'train')
        schedules = take_schedules(self.folder)
        evaluation_memory = None
        if pretraining_kind(self.program.config.task):
            _, evaluation_memory = self.compile_step(number, 'evaluation')
            take_schedules(self.folder)  # they are not used, and their files are large
        text = '' if train is None else train.as_text()
        return CompiledPhase(
            text, train_memory, evaluation_memory, self._schedules.setdefault(text, schedules))

    def compile_step(self, number: int, step_name: str) -> tuple[Any | None, Memory]:
        """A phase's step, compiled for these chips, and the memory that it needs.

        Args:
          number: of the phase, from 0.
          step_name: train or evaluation.
        """
        step, arguments = steps_with_shapes(self.program, number)[step_name]
        say(f'compiling {step_name} of {_name(self.program.phases[number], number)} for '
            f'{self.program.mesh.size // self.chip.num_devices} x {self.chip.name} ...')
        started = time.monotonic()
        if is_card(self.chip.name):
            # Kernels in Pallas are written for the card that the mesh names: there is none to ask.
            with jax.sharding.use_abstract_mesh(self.program.mesh.abstract_mesh):
                result = compile_step(step, *arguments, compiler_options=COMPILER_OPTIONS)
        else:
            result = compile_step(step, *arguments)
        say(f'  done, {time.monotonic() - started:.0f} s')
        return result

    def _batch(self, number: int) -> Record:
        """Shapes of the largest training batch of a phase, by feature."""
        _, (*_, batch) = steps_with_shapes(self.program, number)['train']
        result: Record = batch
        return result

    def _sequence_flops(self, phase: Record, number: int) -> float:
        """FLOPs of a sequence, by the formula; of a downstream task on average."""
        program = self.program
        if pretraining_kind(program.config.task):
            return step_flops(program.head, phase) / phase['batch_size']
        head = program.steps[number].head
        rows = program.task.rows(head, program.phases, number, program.mesh)
        return rows.flops_per_sequence

    def _memory_record(self, number: int, compiled: CompiledPhase, flops: float) -> Record:
        """The memory that a phase needs; blanks for what `time_record` gives.

        Args:
          number: of the phase, from 0.
          compiled: its steps.
          flops: of a sequence, by the formula.
        """
        program = self.program
        mesh = program.mesh
        parts = program.config.train.accumulation_steps
        rows = next(iter(self._batch(number).values())).shape[0]
        rows_at_once = rows / (mesh.shape['data'] * mesh.shape['fsdp'] * parts)
        memory = compiled.train_memory
        params = device_bytes(program.state.params)
        moments = device_bytes(program.state.opt_state)
        batch = memory.arguments - params - moments
        needed = sum(memory)
        needed_to_evaluate = None
        if compiled.evaluation_memory is not None:  # the optimizer's state stays in memory
            needed_to_evaluate = sum(compiled.evaluation_memory) + moments
        fits = max(needed, needed_to_evaluate or 0) <= self.limit
        record = {
            'accumulation_steps': parts, 'rows_per_chip': rows / mesh.size,
            'rows_at_once': rows_at_once, 'collectives': [],
            'bytes_per_chip': needed, 'bytes_limit': self.limit,
            'bytes': {
                'parameters': params, 'optimizer': moments, 'batch': batch,
                'temporaries': memory.temporaries, 'results': memory.outputs, 'code': memory.code,
            },
            'evaluation_bytes_per_chip': needed_to_evaluate,
            'fits': bool(compiled.text) and fits,
            'largest_rows_at_once': _largest_rows_at_once(
                memory, rows_at_once, batch=batch, gradients=params if parts > 1 else 0,
                limit=self.limit),
        }
        if is_card(self.chip.name):
            record['card_bytes'] = self.chip.memory_bytes
        else:  # the compiler tells no cycles of a GPU
            record['cycles_per_sequence'] = None
            record['floor_cycles_per_sequence'] = flops / self.chip.cycle_flops
        return record

    def time_record(
        self, phase: Record, text: CompiledText, schedules: dict[str, Schedule], flops: float
    ) -> Record:
        """Cycles, messages and time of a compiled train step.

        Args:
          phase: of the run.
          text: of the step.
          schedules: of its instructions, by name.
          flops: of a sequence, by the formula.
        """
        chip = self.chip
        num_devices = self.program.mesh.size
        runs_per_sequence = num_devices / phase['batch_size']
        step = step_cycles(text, schedules, chip, runs_per_sequence)
        estimated = sum(scope.estimated for scope in step.scopes)
        scheduled = sum(scope.scheduled for scope in step.scopes)
        messages = find_messages(text, self.network)
        by_kind = collectives(messages)
        clock = runs_per_sequence * chip.clock  # cycles per sequence / clock: seconds of a step
        seconds = {
            'compute': estimated / clock,
            'scheduled': scheduled / clock,
            'waiting': waiting_seconds(text, messages, taken=step.seconds),
            # As if nothing else ran meanwhile, and no other message.
            'collectives': sum(message.times * message.seconds for message in messages),
        }
        return {
            'cycles_per_sequence': estimated, 'scheduled_cycles_per_sequence': scheduled,
            'scopes': [scope.record() for scope in step.scopes], 'collectives': by_kind,
            'collective_bytes': sum(entry['bytes'] for entry in by_kind), 'seconds': seconds,
        } | self._speed_record(phase, seconds['compute'] + seconds['collectives'], flops)

    def card_time_record(self, phase: Record, text: CompiledText, flops: float) -> Record:
        """Kernels, messages and time of a train step that is compiled for GPUs.

        Args:
          phase: of the run.
          text: of the step.
          flops: of a sequence, by the formula.
        """
        sequences = phase['batch_size'] / self.program.mesh.size
        step = step_time(text, self.chip, flops * sequences)
        messages = find_messages(text, self.network)
        by_kind = collectives(messages)
        seconds = {
            'compute': step.products + step.others, 'products': step.products,
            'others': step.others,
            'waiting': waiting_seconds(text, messages, taken=step.seconds),
            'collectives': sum(message.times * message.seconds for message in messages),
        }
        return {
            'kernels': sum(part.kernels for part in step.parts),
            'bytes_moved': sum(part.bytes for part in step.parts),
            'scopes': [part.record() for part in step.parts], 'collectives': by_kind,
            'collective_bytes': sum(entry['bytes'] for entry in by_kind), 'seconds': seconds,
        } | self._speed_record(phase, seconds['compute'] + seconds['collectives'], flops)

    def _speed_record(self, phase: Record, step_seconds: float, flops: float) -> Record:
        """The figures that follow from the seconds of a step.

        Args:
          phase: of the run.
          step_seconds: of a step, messages included.
          flops: of a sequence, by the formula.
        """
        chip = self.chip
        num_devices = self.program.mesh.size
        sequences_per_second = phase['batch_size'] / step_seconds
        hours = phase['steps'] * step_seconds / 3600
        return {
            'step_seconds': step_seconds, 'sequences_per_second': sequences_per_second,
            'mfu': flops * sequences_per_second / (num_devices * chip.peak_flops),
            'hours': hours, 'chip_hours': hours * num_devices / chip.num_devices,
        }


def _name(phase: Record, number: int) -> str:
    """The name of a phase, whose number counts from 0, for messages."""
    return (
        f"phase {number + 1} (length {phase['max_seq_length']}, batch {phase['batch_size']:,})")


def _largest_rows_at_once(
    memory: Memory, rows_at_once: float, *, batch: int, gradients: int, limit: int
) -> int:
    """How many rows a device can compute at once, at least.

    It is a lower bound: temporaries other than accumulated gradients are all taken to grow with the
    rows.

    Args:
      memory: of the train step.
      rows_at_once: of that step.
      batch: bytes of its batch.
      gradients: bytes of accumulated gradients.
      limit: bytes of the device.
    """
    growing = max(memory.temporaries - gradients, 1) + batch
    fixed = sum(memory) - growing
    return max(0, int(rows_at_once * (limit - fixed) / growing))
