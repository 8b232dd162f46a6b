"""Early warnings about pre-training runs that go wrong.

They check metrics that the loop fetches anyway, and do not stop the run: a warning is a line on
standard error and a record `gate/NAME` in metrics.jsonl with the metric's value.
"""

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

MEANINGS: Mapping[str, str] = {
    'first_loss': 'the loss of the first step is not that of guessing',
    'plateau': 'the language-model loss stays where guessing by frequency has it',
    'leak': 'words are guessed better than words can be',
    'loss_spike': 'the loss of a step is far above those before it',
    'gradient_spike': 'the gradient of a step is far above those before it',
    'repeats': 'much of the text is there more than once',
    'reference': 'the run leaves what it is compared with (train.reference)',
}
# Steps that a spike is compared with.
_MOST_STEPS = 100
_LEAST_STEPS = 20
_GRADIENT_SPIKE = 5.0  # times the median
# A loss is a spike from so many mean absolute deviations above the median (six are 4.8 standard
# deviations), but at least so far above it.
_LOSS_SPIKE = 6.0
_LEAST_LOSS_SPIKE = 0.2
_FIRST_LOSS = 0.5  # largest distance from `chance`; fresh parameters of Large are 0.2 off
_PLATEAU = 0.1  # least distance below the loss of guessing by frequency
# Accuracy on masked words: BERT-Large ends near 0.7, and no model has 0.5 in its first tenth.
_TOO_GOOD = 0.85
_TOO_GOOD_EARLY = 0.5
_REPEATED = 0.2  # share of the sentences


class Alarm(NamedTuple):
    """A warning about a run.

    Attributes:
      name: one of `MEANINGS`.
      step: the step concerned.
      value: the metric's value.
      line: for standard error.
    """

    name: str
    step: int
    value: float
    line: str


class Alarms:
    """All that may be wrong with a pre-training run, each checked by a method."""

    def __init__(
        self, *, chance: float | None = None, by_frequency: float | None = None, settled: int = 0,
        repeated: float = 0.0, phases: Sequence[int] = (), masked_from: int = 0,
    ):
        """Takes what the checks compare with.

        Args:
          chance: loss of uniform guessing at the first step; None if the parameters are not fresh
            or the first step is done.
          by_frequency: language-model loss of guessing by frequency, if known.
          settled: the step from which a plateau is looked for.
          repeated: share of the sentences that occur more than once.
          phases: first steps of the later phases; spikes are measured within a phase.
          masked_from: the step at which the last `causal` phase ends, or 0. Masked words are new to
            the model then, so a plateau is looked for `settled` steps later.
        """
        self._chance = chance
        self._fresh = chance is not None
        self._by_frequency = by_frequency
        self._settled = settled
        self._repeated = repeated
        self._phases = phases
        self._plateau_from = settled + masked_from
        self._gradient_history: deque[float] = deque(maxlen=_MOST_STEPS)
        self._loss_history: deque[float] = deque(maxlen=_MOST_STEPS)
        self._raised: set[str] = set()  # alarms about states that still last

    def trained(
        self, step: int, steps: Sequence[Mapping[str, Any]], means: Mapping[str, float]
    ) -> list[Alarm]:
        """Warnings about the steps of a log line.

        Args:
          step: the last of them.
          steps: metrics of each, in order.
          means: means of these metrics.
        """
        first = step - len(steps) + 1
        alarms = self._check_repeats(first)
        if steps:
            alarms += self._check_first_loss(first, float(steps[0]['loss']))
        gradients = [float(metrics['grad_norm']) for metrics in steps]
        alarms += self._check_spikes(
            'gradient', first, gradients, self._gradient_history, _gradient_excess)
        losses = [float(metrics['loss']) for metrics in steps]
        alarms += self._check_spikes('loss', first, losses, self._loss_history, _loss_excess)
        alarms += self._check_plateau(step, _language_model(means, 'loss'))
        return alarms + self.measured('train', step, means)

    def _check_repeats(self, step: int) -> list[Alarm]:
        return self._lasting(
            'repeats', self._repeated > _REPEATED, step, self._repeated,
            f'{self._repeated:.0%} of the sentences of ten tokens or more are repeats: is a part '
            'of the text there twice?')

    def _check_first_loss(self, step: int, loss: float) -> list[Alarm]:
        """Compares the loss of the run's first step with that of guessing, once."""
        if self._chance is None:
            return []
        chance = self._chance
        self._chance = None
        if loss > chance:
            hint = 'look at model.initializer_range'
        else:
            hint = 'the rows give their answers away'
        return self._lasting(
            'first_loss', abs(loss - chance) > _FIRST_LOSS, step, loss,
            f'the loss is {loss:.2f}, by guessing it is {chance:.2f}: {hint}')

    def _check_plateau(self, step: int, loss_of_words: float | None) -> list[Alarm]:
        if self._by_frequency is None or loss_of_words is None or step < self._plateau_from:
            return []
        return self._lasting(
            'plateau', loss_of_words > self._by_frequency - _PLATEAU, step, loss_of_words,
            f'language-model loss {loss_of_words:.2f}, and guessing by frequency has '
            f'{self._by_frequency:.2f}: it learns nothing from the context yet. Lower the '
            'rate, lengthen the warm-up, and see whether labels belong to their rows')

    def _check_spikes(
        self, name: str, first: int, values: Sequence[float], history: deque[float],
        excess_of: Callable[[float, Sequence[float]], float],
    ) -> list[Alarm]:
        """The worst spike among the values of the steps from `first` on, if there is one.

        Args:
          name: 'gradient' or 'loss'.
          first: the step of the first value.
          values: of consecutive steps.
          history: values of the steps before, within the phase; these are added.
          excess_of: how far a value lies beyond what is usual by a history; above 0: a spike.
        """
        worst = 0.0
        alarms: list[Alarm] = []
        for step, value in enumerate(values, first):
            if step in self._phases:
                history.clear()
            if len(history) >= _LEAST_STEPS:
                excess = excess_of(value, history)
                if excess > worst:
                    worst = excess
                    alarms = [Alarm(
                        f'{name}_spike', step, value,
                        f'{name} {value:.3g} at step {step:,}, usually '
                        f'{statistics.median(history):.3g}: '
                        f'config.train.skip_steps=({step},) trains on others '
                        'in their place, from a checkpoint before it')]
            history.append(value)
        return alarms

    def measured(self, kind: str, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        """Warnings about metrics of training steps ('train') or of an evaluation ('eval')."""
        accuracy = _language_model(metrics, 'accuracy')
        if accuracy is None:
            return []
        is_early = self._fresh and step < self._settled
        too_good = _TOO_GOOD_EARLY if is_early else _TOO_GOOD
        return self._lasting(
            'leak', accuracy > too_good, step, accuracy,
            f'language-model accuracy ({kind}) {accuracy:.1%}: no text is that easy to predict: do '
            'the inputs still show the words that are asked for, or are held-out documents in the '
            'training text?',
            kind)

    def _lasting(
        self, name: str, active: bool, step: int, value: float, line: str, about: str = ''
    ) -> list[Alarm]:
        """An alarm about a state, raised only once until that state ends."""
        key = name + about
        if not active:
            self._raised.discard(key)
        elif key not in self._raised:
            self._raised.add(key)
            return [Alarm(name, step, value, f'step {step:,}: {line}')]
        return []


def _gradient_excess(value: float, history: Sequence[float]) -> float:
    return value - _GRADIENT_SPIKE * statistics.median(history)


def _loss_excess(value: float, history: Sequence[float]) -> float:
    usual = statistics.median(history)
    spread = statistics.fmean(abs(x - usual) for x in history)
    return value - (usual + max(_LOSS_SPIKE * spread, _LEAST_LOSS_SPIKE))


def _language_model(metrics: Mapping[str, float], what: str) -> float | None:
    """The metric for masked words, or for the next word if the loss is causal."""
    return metrics.get(f'mlm_{what}', metrics.get(f'lm_{what}'))
