"""Configs for the tests: the project's files by name, and the default with other values."""

import importlib.util
import sys
from collections.abc import Mapping
from typing import Any

from bert_jax.config import ConfigDict, default_config
from bert_jax.config.command_line import config_file, load_config
from bert_jax.tasks.opening import SHIPPED, TASKS
from tests.conftest import ROOT


def load(name: str) -> ConfigDict:
    """The config of `configs/<stem>.py:<argument>`."""
    shipped = {task: TASKS[task] for task in SHIPPED}
    config = load_config(config_file(name))
    TASKS.update(shipped)  # a recipe may have put its own in the place of one
    return config


def changed(values: Mapping[str, Any]) -> ConfigDict:
    """The default config, with 1,000 steps, with fields changed."""
    config = default_config()
    config.train.steps = 1000
    config.update_from_flattened_dict(values)
    return config


def module_of(name: str) -> Any:
    """The module of `configs/<name>.py`, for what it defines beside its config."""
    spec = importlib.util.spec_from_file_location(
        f'recipe_{name}', ROOT / 'configs' / f'{name}.py')
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the names in annotations
    spec.loader.exec_module(module)
    return module
