"""Configs for the tests: the project's files by name, and the default with other values."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config import ConfigDict, default_config
from bert_jax.config.command_line import config_file, load_config


def load(name: str) -> ConfigDict:
    """The config of `configs/<stem>.py:<argument>`."""
    return load_config(config_file(name))


def changed(values: Mapping[str, Any]) -> ConfigDict:
    """The default config, with 1,000 steps, with fields changed."""
    config = default_config()
    config.train.steps = 1000
    config.update_from_flattened_dict(values)
    return config
