"""Compiled phases in files, which a changed preflight prices again without compiling.

A file holds what the compiler said of a phase's steps on one mesh: the train step's text and
schedules, and the memory of both steps.
"""

import dataclasses
import datetime
import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, open_stream, write_whole
from bert_jax.runtime.provenance import versions
from bert_jax.tools.preflight.schedules import Schedule
from bert_jax.train.compiling import Memory


@dataclasses.dataclass(frozen=True)
class CompiledPhase:
    """The compiled steps of a phase.

    Attributes:
      text: of the train step; '' if the compiler finds it too big.
      train_memory: of the train step.
      evaluation_memory: of the evaluation step; None: of a downstream task.
      schedules: of the train step's instructions, by name.
      versions: of the packages that compiled it, by name.
      date: of the compilation, as in 2026-11-27.
    """

    text: str
    train_memory: Memory
    evaluation_memory: Memory | None
    schedules: dict[str, Schedule]
    versions: dict[str, str] = dataclasses.field(default_factory=versions)
    date: str = dataclasses.field(
        default_factory=lambda: datetime.date.today().isoformat())


@dataclasses.dataclass(frozen=True)
class Programs:
    """A folder of compiled phases.

    Attributes:
      folder: its path.
      reads: whether phases are read from it rather than written to it.
    """

    folder: str
    reads: bool

    def write(self, name: str, run: Mapping[str, Any], compiled: CompiledPhase) -> None:
        """Writes a phase.

        Args:
          name: of the file, without its ending.
          run: plain values that tell the phase from others.
          compiled: its steps.
        """
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps({'run': run, **dataclasses.asdict(compiled)})
        write_whole(path, gzip.compress(content.encode('utf-8'), mtime=0))

    def read(self, name: str, run: Mapping[str, Any]) -> CompiledPhase:
        """Reads what `write` wrote.

        Raises:
          InputError: there is no such file, or it is of another phase or run.
        """
        path = self._path(name)
        with open_stream(path) as file:
            content = file.read()
        try:
            stored = json.loads(content)
            found = stored.pop('run')
            for instruction, (bundles, unit) in stored['schedules'].items():
                stored['schedules'][instruction] = Schedule(tuple(bundles), unit)
            for memory in ('train_memory', 'evaluation_memory'):
                if stored[memory] is not None:
                    stored[memory] = Memory(*stored[memory])
            compiled = CompiledPhase(**stored)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f'{path} holds no compiled phase: compile it again') from error
        if found != dict(run):
            raise InputError(f'{path} was compiled for {found}, not for {dict(run)}: compile again')
        return compiled

    def _path(self, name: str) -> Path:
        return as_path(self.folder) / f'{name}.json.gz'
