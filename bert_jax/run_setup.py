"""From a config to what it names: weights to start from, devices, data, program."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from bert_jax.completion import complete
from bert_jax.corpus.preparing import prepare
from bert_jax.foreign import load_weights
from bert_jax.run.layout import checkpoints_of
from bert_jax.run.model import read_description
from bert_jax.runtime import files
from bert_jax.runtime.compilation_cache import keep_compiled
from bert_jax.runtime.hosts import say
from bert_jax.sharding import Mesh, make_mesh, mesh_sizes
from bert_jax.tasks.opening import open_task, own_file
from bert_jax.train.program import Program, build_program
from bert_jax.validation import validate


def open_run(config: ConfigDict, workdirs: Sequence[files.Path]) -> Program:
    """Reads the weights and data that a config names, and builds its program.

    Args:
      config: as read from the config file and the command line.
      workdirs: of the runs that share the program; these differ only in seed and learning rate.

    Raises:
      InputError: bad configuration or data.
    """
    init_weights = None
    if config.init_checkpoint:
        all_began = all(checkpoints_of(workdir) for workdir in workdirs)
        if all_began:
            # Such a run restores its parameters and needs only the description of the model.
            init_weights = read_description(workdirs[0])
        else:
            say(f'training starts from the weights of {config.init_checkpoint}')
            init_weights = load_weights(
                config.init_checkpoint, own_head=True, keep_adapter=True)
    config = complete(config, init_weights)
    mesh = open_mesh(config, jax.devices())
    axes = ' x '.join(f'{name} {size}' for name, size in mesh.shape.items())
    say(f'devices: {jax.device_count()} x {jax.devices()[0].device_kind}, mesh {axes}')
    keep_compiled(files.as_path(config.data.dir) / 'compiled')
    program = build_program(config, mesh, open_task(config, prepare(config)), init_weights)
    return dataclasses.replace(program, own_file=own_file(config.task, type(program.head)))


def open_mesh(config: ConfigDict, devices: Sequence[Any]) -> Mesh:
    """The mesh of a completed config on these devices.

    Raises:
      InputError: the config cannot work, or cannot on this number of devices.
    """
    validate(config, len(devices))
    axes = config.mesh
    return make_mesh(*mesh_sizes(axes.data, axes.fsdp, axes.tensor, devices), devices)
