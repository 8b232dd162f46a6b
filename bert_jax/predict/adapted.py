"""A model with several adapters: the results of each for a text, in as few passes as possible.

Heads on equal encoders read a text once, together. Every other adapter takes a pass of its own.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from bert_jax.answers.engine import Outputs, bound, outputs_by_head
from bert_jax.config.bert_config import OPTIONS
from bert_jax.predict.answers import Answer
from bert_jax.predict.loaded import LoadedModel
from bert_jax.predict.model import Model
from bert_jax.predict.stream import Result, TextJob, stream
from bert_jax.predict.tags import Tag
from bert_jax.predict.texts import classify_job
from bert_jax.rows.packing import Units
from bert_jax.runtime.arriving import Arriving
from bert_jax.weights.parameters import ENCODER

_ONLY_TRAINED = {option.name for option in OPTIONS if option.effect == 'trains'}
_OF_TEXT = ('text', 'first', 'second', 'question', 'choices')  # what results repeat of a text


class Adapted:
    """A model with several adapters. Its commands are those of `Model`, for all of them.

    A result has the text as the results of the models repeat it, 'adapters' with the rest of each
    by the adapter's name, and 'error' if one of them has it.

    Attributes:
      weights: of the first; all heads take texts of one form.
    """

    def __init__(self, models: Mapping[str, Model]):
        """`models`: with each adapter, by its name; from `loading.load_adapted`."""
        self._models = models
        self.weights = next(iter(models.values())).weights

    def iter_classify(
        self, texts: Arriving, windows: str | None = None, any_form: bool = False
    ) -> Iterator[Result]:
        """As `Model.iter_classify`."""
        return self._stream(texts, lambda model: classify_job(model, windows, any_form))

    def iter_answer(
        self, questions: Arriving, max_answer_length: int = 30, null_threshold: float | None = None
    ) -> Iterator[Result]:
        """As `Model.iter_answer`."""
        return self._stream(
            questions, lambda model: Answer(model, max_answer_length, null_threshold))

    def iter_tag(self, texts: Arriving, aggregation: str = 'first') -> Iterator[Result]:
        """As `Model.iter_tag`."""
        return self._stream(texts, lambda model: Tag(model, aggregation))

    def _stream(
        self, texts: Arriving, job_of: Callable[[Model], TextJob[Any, Any]]
    ) -> Iterator[Result]:
        """A result for each text, from the job of each model."""
        passes = _passes({name: job_of(model) for name, model in self._models.items()})
        streams = []
        for jobs, items in zip(passes, itertools.tee(texts.items, len(passes)), strict=True):
            job = _Together(jobs)
            streams.append(stream(job.model, Arriving(items, texts.wait), job))
        for of_passes in zip(*streams, strict=True):
            found: dict[str, Result] = {}
            for by_name in of_passes:
                found |= by_name
            yield _joined({name: found[name] for name in self._models})


def _passes(jobs: Mapping[str, TextJob[Any, Any]]) -> list[dict[str, TextJob[Any, Any]]]:
    """The jobs by what they can share: those of a group read texts alike, on equal encoders."""
    passes: list[dict[str, TextJob[Any, Any]]] = []
    for name, job in jobs.items():
        for others in passes:
            (first, *_) = others.values()
            if _reads_as(job, first) and _is_on_encoder_of(job.model, first.model):
                others[name] = job
                break
        else:
            passes.append({name: job})
    return passes


def _reads_as(job: TextJob[Any, Any], other: TextJob[Any, Any]) -> bool:
    """Whether two jobs make the same units of every text."""
    mine, others = (
        (type(each), each.reading, each.model.max_length, each.model.frame,
         each.model.weights.vocab_file, each.model.weights.lowercase) for each in (job, other))
    return mine == others


def _is_on_encoder_of(model: LoadedModel, other: LoadedModel) -> bool:
    """Whether two models differ in nothing before the pooler, and their heads in sizes alone."""
    if _computed(model) != _computed(other):
        return False
    if type(model.head.module) is not type(other.head.module):
        return False
    params, others = model.weights.params, other.weights.params
    names = {name for name in {*params, *others} if name.startswith(ENCODER)}
    return all(params.get(name) is others.get(name) for name in names)


def _computed(model: LoadedModel) -> dict[str, Any]:
    """The fields of a model's configuration but for those that only say how it is trained."""
    return {name: x for name, x in vars(model.config).items() if name not in _ONLY_TRAINED}


class _Together(TextJob[Any, Any]):
    """Jobs that read texts alike, on models with the same encoder, which computes a text once.

    A result has that of each job, by its name.
    """

    def __init__(self, jobs: Mapping[str, TextJob[Any, Any]]):
        """The `jobs` by name."""
        self._jobs = jobs
        self._first = next(iter(jobs.values()))
        heads = tuple(job.model.head for job in jobs.values())
        super().__init__(self._first.model, bound(outputs_by_head, heads))
        self.values_per_token = sum(job.values_per_token for job in jobs.values())
        self.notes = self._first.notes

    @property
    def params(self) -> Any:
        """Those of each model, which share what is the same."""
        return tuple(job.model.device_params for job in self._jobs.values())

    def read(self, text: Any, number: int) -> Any:
        """As each of the jobs does."""
        return self._first.read(text, number)

    def batch(self, texts: list[Any]) -> tuple[Any, Units]:
        """As each of the jobs does."""
        return self._first.batch(texts)

    def size(self, text: Any) -> int:
        """As each of the jobs estimates it."""
        return self._first.size(text)

    def results(
        self, texts: list[Any], made: Any, outputs: Outputs
    ) -> Iterator[dict[str, Result]]:
        """The results of the jobs from the outputs of their heads."""
        of_jobs: list[Iterable[Result]] = []
        for number, job in enumerate(self._jobs.values()):
            prefix = f'{number}/'
            own = {name.removeprefix(prefix): x for name, x in outputs.items()
                   if name.startswith(prefix)}
            of_jobs.append(job.results(texts, made, own))
        for results in zip(*of_jobs, strict=True):
            yield dict(zip(self._jobs, results, strict=True))

    def without_result(self, text: Any, reason: str) -> dict[str, Result]:
        """The results of all jobs for such a text."""
        return {name: job.without_result(text, reason) for name, job in self._jobs.items()}


def _joined(results: Mapping[str, Result]) -> Result:
    """The results of adapters as one."""
    first: Result = next(iter(results.values()))
    shared = {key: value for key, value in first.items() if key in _OF_TEXT}
    by_name = {}
    for name, result in results.items():
        by_name[name] = {key: value for key, value in result.items() if key not in shared}
    errors = [result['error'] for result in results.values() if 'error' in result]
    failed = {'error': errors[0]} if errors else {}
    return {**shared, **failed, 'adapters': by_name}
