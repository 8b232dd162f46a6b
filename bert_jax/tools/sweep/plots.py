"""Plots of a sweep's study, drawn by Optuna: files of its folder, which the report shows."""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bert_jax.runtime import files

if TYPE_CHECKING:
    import optuna

PLOTS = 'plots'
# File and what it shows, in a reader's order.
_TITLES = {
    'history.png': 'The points in their order, and the best so far',
    'importances.png': 'How much each field matters among the points',
    'slice.png': 'The points by the value of each field',
    'evaluations.png': 'The evaluations of each point',
}
_LEAST_FOR_IMPORTANCES = 4  # points; of fewer, the better half is one of chance


def draw_plots(study: 'optuna.Study', folder: files.Path, metric: str) -> None:
    """Writes `plots/*.png` of what a study can show: nothing of a single point.

    Args:
      study: of the sweep.
      folder: of the sweep.
      metric: what the values of the trials are.
    """
    import matplotlib
    import numpy as np
    from matplotlib import pyplot

    (folder / PLOTS).mkdir(exist_ok=True)
    # Optuna sets pyplot's style for all figures to come.
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # these functions are experimental
        for name, draw in _drawn_by(study, metric).items():
            figure = np.ravel(draw())[0].figure
            with files.open_whole(folder / PLOTS / name) as file:
                figure.savefig(file, dpi=100, format='png', bbox_inches='tight')
            pyplot.close(figure)


def _drawn_by(study: 'optuna.Study', metric: str) -> dict[str, Callable[[], Any]]:
    """The function that draws each plot for which there are enough points, by file name."""
    from optuna.trial import TrialState
    from optuna.visualization import matplotlib as of_optuna

    def evaluations() -> Any:
        axes = of_optuna.plot_intermediate_values(study)
        axes.set(title='Evaluations', xlabel='evaluation', ylabel=metric)
        return axes

    trials = study.get_trials(deepcopy=False)
    complete = [trial for trial in trials if trial.state is TrialState.COMPLETE]
    found: dict[str, Callable[[], Any]] = {}
    if len(complete) < 2:
        return found
    found['history.png'] = lambda: of_optuna.plot_optimization_history(study, target_name=metric)
    num_values = len({trial.value for trial in complete})
    is_weighed = len(complete) >= _LEAST_FOR_IMPORTANCES and num_values > 1
    if len(complete[0].params) > 1 and is_weighed:
        found['importances.png'] = lambda: of_optuna.plot_param_importances(
            study, target_name=metric)
    if complete[0].params:
        found['slice.png'] = lambda: of_optuna.plot_slice(study, target_name=metric)
    if any(trial.intermediate_values for trial in trials):
        found['evaluations.png'] = evaluations
    return found


def plots_in(folder: files.Path) -> dict[str, files.Path]:
    """The plots in the folder of a sweep, by what they show."""
    paths = {title: folder / PLOTS / name for name, title in _TITLES.items()}
    return {title: path for title, path in paths.items() if path.exists()}
