"""Gates: early warnings about pre-training runs that go wrong.

They check metrics that the loop fetches anyway, and do not stop the run: a warning is a line on
standard error and a record `gate/NAME` in metrics.jsonl with the metric's value.
"""

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MEANINGS: Mapping[str, str] = {
    'first_loss': 'the loss of the first step is not that of guessing',
    'plateau': 'the language-model loss stays where guessing by frequency has it',
    'leak': 'words are guessed better than words can be',
    'loss_spike': 'the loss of a step is far above those before it',
    'gradient_spike': 'the gradient of a step is far above those before it',
    'repeats': 'much of the text is there more than once',
}
_HISTORY, _FEWEST = 100, 20  # steps that a spike is compared with: at most, at least
_GRADIENT_SPIKE = 5.0  # times the median
# A loss is a spike from so many mean absolute deviations above the median (six are 4.8 standard
# deviations), but at least so far above it.
_LOSS_SPIKE, _LEAST_LOSS_SPIKE = 6.0, 0.2
_FIRST_LOSS = 0.5  # largest distance from `chance`; fresh parameters of Large are 0.2 off
_PLATEAU = 0.1  # least distance below the loss of guessing by frequency
# Accuracy on masked words: BERT-Large ends near 0.7, and no model has 0.5 in its first tenth.
_TOO_GOOD, _TOO_GOOD_EARLY = 0.85, 0.5
_REPEATED = 0.2  # share of the sentences


class Alarm(NamedTuple):
    """A warning of a gate.

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


class Gates:
    """All gates of a pre-training run."""

    def __init__(
        self, *, chance: float | None = None, by_frequency: float | None = None, settled: int = 0,
        repeated: float = 0.0, phases: Sequence[int] = (), masked_from: int = 0,
    ):
        """Arms the gates.

        Args:
          chance: loss of uniform guessing at the first step; None if the parameters are not fresh
            or the first step is done.
          by_frequency: language-model loss of guessing by frequency, if known.
          settled: the step at which the plateau gate arms.
          repeated: share of the sentences that occur more than once.
          phases: first steps of the later phases; spikes are measured within a phase.
          masked_from: the step at which the last `causal` phase ends, or 0. Masked words are new to
            the model then, so the plateau gate arms `settled` steps later.
        """
        self._chance, self._by_frequency, self._settled = chance, by_frequency, settled
        self._fresh = chance is not None
        self._repeated, self._phases = repeated, phases
        self._plateau_from = settled + masked_from
        self._histories: dict[str, deque[float]] = {
            name: deque(maxlen=_HISTORY) for name in ('gradient', 'loss')}
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
        result = self._lasting(
            'repeats', self._repeated > _REPEATED, first, self._repeated,
            f'{self._repeated:.0%} of the sentences of ten tokens or more are repeats: is a part '
            'of the text there twice?')
        if self._chance is not None and steps:
            loss, chance, self._chance = float(steps[0]['loss']), self._chance, None
            result += self._lasting(
                'first_loss', abs(loss - chance) > _FIRST_LOSS, first, loss,
                f'the loss is {loss:.2f}, by guessing it is {chance:.2f}: '
                + ('look at model.initializer_range' if loss > chance
                   else 'the rows give their answers away'))
        for name, metric in (('gradient', 'grad_norm'), ('loss', 'loss')):
            result += self._worst_spike(name, first, [float(s[metric]) for s in steps])
        loss_of_words = _language_model(means, 'loss')
        if (self._by_frequency is not None and loss_of_words is not None
                and step >= self._plateau_from):
            result += self._lasting(
                'plateau', loss_of_words > self._by_frequency - _PLATEAU, step, loss_of_words,
                f'language-model loss {loss_of_words:.2f}, and guessing by frequency has '
                f'{self._by_frequency:.2f}: it learns nothing from the context yet. Lower the '
                'rate, lengthen the warm-up, and see whether labels belong to their rows')
        return [*result, *self.measured('train', step, means)]

    def _worst_spike(self, name: str, first: int, values: Sequence[float]) -> list[Alarm]:
        """The worst spike among the values of the steps from `first` on, if there is one."""
        worst, result, history = 0.0, list[Alarm](), self._histories[name]
        for step, value in enumerate(values, first):
            if step in self._phases:
                history.clear()
            if len(history) >= _FEWEST:
                usual = statistics.median(history)
                spread = statistics.fmean(abs(x - usual) for x in history)
                excess = value - (
                    _GRADIENT_SPIKE * usual if name == 'gradient' else
                    usual + max(_LOSS_SPIKE * spread, _LEAST_LOSS_SPIKE))
                if excess > worst:
                    worst, result = excess, [Alarm(
                        f'{name}_spike', step, value,
                        f'{name} {value:.3g} at step {step:,}, usually {usual:.3g}: '
                        f'config.train.skip_steps=({step},) trains on others '
                        'in their place, from a checkpoint before it')]
            history.append(value)
        return result

    def measured(self, kind: str, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        """Warnings about metrics of training steps ('train') or of an evaluation ('eval')."""
        accuracy = _language_model(metrics, 'accuracy')
        if accuracy is None:
            return []
        early = self._fresh and step < self._settled
        return self._lasting(
            'leak', accuracy > (_TOO_GOOD_EARLY if early else _TOO_GOOD), step, accuracy,
            f'language-model accuracy ({kind}) {accuracy:.1%}: no words are as easy to guess; do '
            'the rows still hold what is asked, or held-out documents stand in the training text?',
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


def _language_model(metrics: Mapping[str, float], what: str) -> float | None:
    """The metric for masked words, or for the next word if the loss is causal."""
    return metrics.get(f'mlm_{what}', metrics.get(f'lm_{what}'))
