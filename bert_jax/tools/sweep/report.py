"""The table of a sweep: its scores by settings, the best run, and what failed."""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bert_jax.runtime import files
from bert_jax.runtime.errors import counted, show, visible
from bert_jax.tools.sweep.folder import Sweep, rank_of, score_of, shown_score
from bert_jax.tools.sweep.members import Member, Settings
from bert_jax.tools.sweep.plots import draw_plots, plots_in
from bert_jax.tools.sweep.search import Axis, Range

if TYPE_CHECKING:
    import optuna

_TABLE = 'table.md'
_EDGE = 0.05  # share of a range at each end


def report(sweep: Sweep) -> int:
    """Prints and writes the table; returns the exit status. It needs the run folders alone."""
    results = sweep.results()
    if not results:
        show('error: no run ended well; see their log.txt')
        return 1
    sweep.settle()
    groups = _groups(sweep, results)
    text = _table(sweep, results, groups)
    show(text)
    winner, best = next(iter(results.items()))
    files.write_whole(sweep.path / _TABLE, text)
    files.write_whole(sweep.path / 'results.json', json.dumps({
        'metric': best['metric'], 'winner': winner.name, 'best': score_of(best),
        'tied': [member.name for member in _tied(results)],
        'groups': groups,
        'pruned': _pruned(sweep),
        'runs': {member.name: results.get(member) for member in sweep.members},
    }, indent=1))
    return 1 if _failed(sweep, results) else 0


def add_plots(sweep: Sweep, study: 'optuna.Study') -> None:
    """Draws the plots of the study, and shows them below the table that `report` has written."""
    results = sweep.results()
    if not results:
        return
    best = next(iter(results.values()))
    draw_plots(study, sweep.path, best['metric'])
    text = (sweep.path / _TABLE).read_text(encoding='utf-8')
    for title, path in plots_in(sweep.path).items():
        text += f'\n{title}:\n\n![{title}]({path.parent.name}/{path.name})\n'
    files.write_whole(sweep.path / _TABLE, text)


def _pruned(sweep: Sweep) -> dict[str, str]:
    """Why runs were ended early, by their names."""
    found = {}
    for member in sweep.members:
        pruned = sweep.pruned(member)
        if pruned is not None:
            found[member.name] = pruned['why']
    return found


def _failed(sweep: Sweep, results: Mapping[Member, dict[str, Any]]) -> list[str]:
    """The names of the runs that have neither finished nor been pruned."""
    return [member.name for member in sweep.members
            if member not in results and sweep.pruned(member) is None]


def _groups(sweep: Sweep, results: Mapping[Member, dict[str, Any]]) -> list[dict[str, Any]]:
    """The scores of finished members that differ only in their seed, summarized."""
    scores: dict[Settings, list[float | None]] = {}
    for member in sweep.members:
        if member in results:
            group = scores.setdefault(member.without('seed'), [])
            group.append(score_of(results[member]))
    groups = [_summarized(settings, values) for settings, values in scores.items()]
    if sweep.search is not None:
        groups.sort(key=_mean, reverse=True)
    return groups


def _mean(group: Mapping[str, Any]) -> float:
    """The mean of a group; an undefined one is below all others."""
    mean: float | None = group['mean']
    return -math.inf if mean is None else mean


def _edge_lines(
    sweep: Sweep, groups: Sequence[dict[str, Any]], winner: Member
) -> list[str]:
    """For each field whose best value is an outermost one, that values beyond may be better."""
    highest = max(map(_mean, groups))
    best_groups = [group for group in groups if _mean(group) == highest]
    best = best_groups[0]
    for group in best_groups:  # of equal ones that of the best run, which the loss decides
        if group['settings'] == dict(winner.without('seed')):
            best = group
    lines = []
    for field, text in best['settings'].items():
        tried = [dict(member.settings)[field] for member in sweep.members]
        axis = None
        of = 'grid'
        if sweep.search is not None:
            axis = sweep.search.space[field]
            of = 'search'
        direction = _edge(text, tried, axis)
        if direction:
            lines.append(f'the best is at the edge of the {of}: {field} {text} is the '
                         f'{direction}est, try {direction}er ones')
    return lines


def _edge(text: str, tried: Sequence[str], axis: Axis | None) -> str:
    """'high' or 'low' if a value is at that end of those that were tried; '' if at none.

    Args:
      text: the value.
      tried: all values of the grid.
      axis: what values were drawn from, instead.
    """
    if isinstance(axis, Range):
        place = axis.place(float(text))
        if place >= 1 - _EDGE:
            return 'high'
        return 'low' if place <= _EDGE else ''
    try:
        value = float(text)
        numbers = {float(other) for other in (tried if axis is None else axis.values)}
    except ValueError:
        return ''
    if len(numbers) < 2:
        return ''
    if value == max(numbers):
        return 'high'
    return 'low' if value == min(numbers) else ''


def _summarized(settings: Settings, values: Sequence[float | None]) -> dict[str, Any]:
    """The summary of a group; of scores that are undefined in part, without them."""
    defined = [value for value in values if value is not None]
    numbers: dict[str, Any] = {'mean': None, 'deviation': None, 'best': None}
    if defined:
        numbers = {**summary(defined), 'best': max(defined)}
    return {'settings': dict(settings), **numbers, 'runs': len(values)}


def _tied(results: Mapping[Member, dict[str, Any]]) -> list[Member]:
    """The members, best first, whose metric is that of the best; none if it is alone."""
    best = next(iter(results.values()))
    tied = [member for member, result in results.items() if score_of(result) == score_of(best)]
    return tied if len(tied) > 1 else []


def _tie_line(results: Mapping[Member, dict[str, Any]]) -> str:
    """A line on what decides between the best members; '' if the metric alone does."""
    tied = _tied(results)
    if not tied:
        return ''
    first, second = (rank_of(results[member]) for member in tied[:2])
    decides = f'the lowest loss decides, {-first[1]:.4g}'
    if first == second:
        decides = 'the first of those with the lowest loss is taken'
    return f'{len(tied)} runs have this {next(iter(results.values()))["metric"]}: {decides}'


def _table(
    sweep: Sweep, results: Mapping[Member, dict[str, Any]], groups: Sequence[dict[str, Any]]
) -> str:
    """The table in Markdown, with the best run and the deleted and failed ones.

    Args:
      sweep: the sweep.
      results: of the finished members, best first.
      groups: from `_groups`.
    """
    winner, best = next(iter(results.items()))
    metric = best['metric']
    heading = ['settings', 'runs', f'mean {metric}', 'deviation', 'best']
    lines = markdown_table(heading, [_group_cells(group) for group in groups])
    lines.append(f'\nbest: {winner.name} ({metric} {shown_score(best)})')
    tie = _tie_line(results)
    if tie:
        lines.append(tie)
    lines += _edge_lines(sweep, groups, winner)
    hours = sum(map(sweep.seconds, results)) / 3600
    hosts = {result.get('host', '') for result in results.values()} - {''}
    lines.append(
        f"{counted(len(results), 'run')}, {hours:.2f} hours of a process in all, on "
        f"{', '.join(sorted(hosts))}")
    deleted = len(results) - sweep.keep
    if deleted > 0:
        kept = '; '.join(member.name for member in list(results)[: sweep.keep])
        lines.append(f"the checkpoints of {counted(deleted, 'run')} are deleted; "
                     f'kept: {kept}')
    pruned = _pruned(sweep)
    if pruned:
        lines.append(f"pruned: {', '.join(sorted(pruned))}")
    failed = _failed(sweep, results)
    if failed:
        lines.append(f"failed: {', '.join(sorted(failed))}")
    return '\n'.join(lines) + '\n'


def _group_cells(group: Mapping[str, Any]) -> list[str]:
    """The cells of a group in the table."""
    settings = [f'{field} {value}' for field, value in group['settings'].items()]
    return [
        ', '.join(settings) or 'as configured', str(group['runs']), _four_places(group['mean']),
        _four_places(group['deviation']), _four_places(group['best'])]


def _four_places(value: float | None) -> str:
    return '' if value is None else f'{value:.4f}'


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Number of runs, their mean, and their standard deviation, None for a single run."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {'runs': len(values), 'mean': statistics.fmean(values), 'deviation': deviation}


def markdown_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table; bars and line ends in a cell do not divide it."""
    rule = ['---'] * len(heading)
    lines = []
    for cells in (heading, rule, *rows):
        lines.append('| ' + ' | '.join(_in_cell(cell) for cell in cells) + ' |')
    return lines


def _in_cell(text: str) -> str:
    return visible(' '.join(text.split())).replace('|', '\\|')
