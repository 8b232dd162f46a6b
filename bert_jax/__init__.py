"""BERT in JAX and Flax: pre-training, fine-tuning, conversion, prediction, and a library.

    import bert_jax
    bert = bert_jax.from_pretrained('hf:google-bert/bert-base-uncased')
    batch = bert.tokenizer(['a text', ('a text', 'its pair')], max_length=128)
    outputs = bert.module.apply({'params': bert.params}, **batch)

`__all__` is what is public (docs/library.md). Each name is imported when it is first used, so that
`import bert_jax` loads no jax.
"""

import importlib
import itertools
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bert_jax.moved import accept_old_names

if TYPE_CHECKING:
    from bert_jax.api.mteb import mteb_model as mteb_model
    from bert_jax.api.pretrained import Bert as Bert
    from bert_jax.api.pretrained import from_config as from_config
    from bert_jax.api.pretrained import from_pretrained as from_pretrained
    from bert_jax.api.runs import evaluate_run as evaluate_run
    from bert_jax.api.runs import train_run as train_run
    from bert_jax.config.bert_config import BertConfig as BertConfig
    from bert_jax.loading import load as load
    from bert_jax.runtime.errors import InputError as InputError
    from bert_jax.tools.sweep.call import sweep as sweep

# Where each public name is defined.
_DEFINED_IN = {
    'Bert': 'api.pretrained',
    'BertConfig': 'config.bert_config',
    'InputError': 'runtime.errors',
    'evaluate_run': 'api.runs',
    'from_config': 'api.pretrained',
    'from_pretrained': 'api.pretrained',
    'load': 'loading',
    'mteb_model': 'api.mteb',
    'sweep': 'tools.sweep.call',
    'train_run': 'api.runs',
}
__all__ = [
    'Bert',
    'BertConfig',
    'InputError',
    'evaluate_run',
    'from_config',
    'from_pretrained',
    'load',
    'mteb_model',
    'sweep',
    'train_run',
]


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    module = importlib.import_module(f'bert_jax.{_DEFINED_IN[name]}')
    return getattr(module, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def _tell_of_interrupt(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Python's hook for uncaught exceptions; Ctrl-C is one line, also while a command imports."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write('error: stopped\n')
    else:
        sys.__excepthook__(kind, error, trace)


def _is_command() -> bool:
    """Whether this process is a command, `python -m bert_jax...`, and not somebody's program."""
    words = itertools.pairwise(sys.orig_argv)
    return any(
        first == '-m' and second.partition('.')[0] == 'bert_jax' for first, second in words)


if _is_command():
    sys.excepthook = _tell_of_interrupt
accept_old_names()
