"""Which field is meant by a name that is none."""

import difflib
from collections.abc import Mapping

from bert_jax.config.fields import FIELDS

# Arguments of Hugging Face's Trainer and its scripts whose fields have another name here, some with
# a value (docs/from_trainer.md has all of them).
TRAINER_ARGUMENTS: Mapping[str, str] = {
    'model_name_or_path': 'init_checkpoint',
    'report_to': 'train.loggers',
    'num_train_epochs': "train.steps='3 epochs'",
    'max_steps': "train.steps='3 epochs'",
    'bf16': 'model.dtype',
    'fp16': 'model.dtype',
    'eval_strategy': "train.eval_every='1 epoch'",
    'eval_steps': "train.eval_every='1 epoch'",
    'lr': 'optimizer.learning_rate',
    'save_strategy': "train.save_every='1 epoch'",
    'save_steps': "train.save_every='1 epoch'",
    'logging_steps': 'train.log_every',
    'per_device_train_batch_size': 'train.batch_size',
    'gradient_checkpointing': 'model.remat',
    'gradient_accumulation_steps': 'train.accumulation_steps',
    'optim': 'optimizer.name',
    'save_total_limit': 'train.keep_checkpoints',
    'early_stopping_patience': 'train.patience',
    'warmup_steps': "optimizer.warmup='10%'",
    'warmup_ratio': "optimizer.warmup='10%'",
    'lr_scheduler_type': 'optimizer.decay',
    'max_grad_norm': 'optimizer.clip_norm',
    'metric_for_best_model': 'classification.metrics',
}


def suggest_field(path: str) -> str:
    """The hint for a field that does not exist: which one may be meant."""
    if path in FIELDS:  # and not written as one
        return f'write --config.{path}=VALUE'
    name = _name_of(path)
    if name in TRAINER_ARGUMENTS:
        return f'here that is --config.{TRAINER_ARGUMENTS[name]}'
    close = difflib.get_close_matches(path, FIELDS, n=1, cutoff=0.8)
    if close:
        return f'did you mean {close[0]!r}?'
    paths = {_name_of(path): path for path in FIELDS}
    close = difflib.get_close_matches(name, paths, n=1, cutoff=0.75)
    if close:
        return f'did you mean {paths[close[0]]!r}?'
    return 'with --help, all fields are listed'


def _name_of(path: str) -> str:
    """The name of a field without its section."""
    return path.rpartition('.')[2]
