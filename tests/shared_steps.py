"""Runs and evaluations of this process that compute the same share their steps.

Each would trace and compile its own, which takes seconds, though nothing else does in a tiny run.
"""

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from bert_jax.answers.engine import Engine
from bert_jax.config import command_line
from bert_jax.step import step
from bert_jax.train import compiling, program

_MADE: dict[Any, Any] = {}


def _made(key: Any, make: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What was made with this key."""
    if key not in _MADE:
        _MADE[key] = make(*args, **options)
    return _MADE[key]


@contextlib.contextmanager
def shared_steps() -> Iterator[None]:
    """Makes each kind of step, initial state and output once for all that it depends on.

    Config files are run once, too: a head that one defines is the same class in all runs.
    """
    optimizer_maker = program._optimizer_maker
    make_train_step = step.make_train_step
    make_eval_step = step.make_eval_step
    make_init = step.make_init
    compile_step = compiling.compile_step
    module_of = command_line._module

    def shared_module(code: types.CodeType, path: str) -> Any:
        module = _made(('config file', path, code), module_of, code, path)
        sys.modules[module.__name__] = module
        return module

    def shared_optimizer_maker(config: Any, *args: Any) -> Any:
        key = ('optimizer', str(config.optimizer), *map(str, args))
        return _made(key, _optimizers_once, optimizer_maker(config, *args))

    def shared_train_step(head: Any, optimizer_of: Any, abstract: Any, mesh: Any, **options: Any):
        key = ('train', head, optimizer_of, str(abstract), mesh, str(options))
        return _made(key, make_train_step, head, optimizer_of, abstract, mesh, **options)

    def shared_eval_step(head: Any, mesh: Any) -> Any:
        return _made(('evaluation', head, mesh), make_eval_step, head, mesh)

    def shared_init(head: Any, optimizer: Any, mesh: Any) -> Any:
        # Tests replace `make_init`: what one replacement made is not for the runs of others.
        key = ('init', make_init, head, optimizer, mesh)
        return _made(key, make_init, head, optimizer, mesh)

    def shared_compile_step(jitted: Any, *arguments: Any) -> tuple[Any, compiling.Memory]:
        compiled = None  # of a step that has told its memory: a program would stay in memory
        key = ('memory', jitted, str(arguments))
        if key not in _MADE:
            compiled, _MADE[key] = compile_step(jitted, *arguments)
        return compiled, _MADE[key]

    with (mock.patch.object(program, '_optimizer_maker', shared_optimizer_maker),
          mock.patch.object(compiling, 'compile_step', shared_compile_step),
          mock.patch.object(step, 'make_train_step', shared_train_step),
          mock.patch.object(step, 'make_eval_step', shared_eval_step),
          mock.patch.object(step, 'make_init', shared_init),
          mock.patch.object(command_line, '_module', shared_module),
          shared_outputs()):
        yield


@contextlib.contextmanager
def shared_outputs() -> Iterator[None]:
    """Compiles what loaded models compute once for all models whose heads are equal."""
    open_engine = Engine.__init__

    def shared_engine(engine: Engine, *args: Any, **options: Any) -> None:
        open_engine(engine, *args, **options)
        compiled = engine._compiled

        def shared_function(function: Any) -> Any:
            head = getattr(function, '__self__', None)  # a method is another object each time
            key = ('outputs', head, getattr(function, '__func__', function))
            return _made(key, compiled, function)

        engine._compiled = shared_function

    with mock.patch.object(Engine, '__init__', shared_engine):
        yield


def _optimizers_once(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function, which makes the optimizer of given learning rates once."""
    def made(rates: Any) -> Any:
        if isinstance(rates, list):
            return _made((make, *rates), make, rates)
        return make(rates)  # traced

    return made
