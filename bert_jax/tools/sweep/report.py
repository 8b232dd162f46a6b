"""The table of a sweep: its scores by settings, the best run, and what failed."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_jax.runtime import files
from bert_jax.runtime.errors import show, visible
from bert_jax.tools.sweep.directory import Sweep, score_of
from bert_jax.tools.sweep.members import Member, Settings


def report(sweep: Sweep) -> int:
    """Prints and writes the table; returns the exit status of the sweep."""
    results = sweep.results()
    if not results:
        show('error: no run ended well; see their log.txt')
        return 1
    sweep.settle()
    groups = _groups(sweep, results)
    text = _table(sweep, results, groups)
    show(text)
    files.write_whole(sweep.path / 'table.md', text)
    winner, best = next(iter(results.items()))
    files.write_whole(sweep.path / 'results.json', json.dumps({
        'metric': best['metric'], 'winner': winner.name, 'best': score_of(best),
        'groups': groups,
        'runs': {member.name: results.get(member) for member in sweep.members},
    }, indent=1))
    return 1 if len(results) < len(sweep.members) else 0


def _groups(sweep: Sweep, results: Mapping[Member, dict[str, Any]]) -> list[dict[str, Any]]:
    """The scores of finished members that differ only in their seed, summarized."""
    scores: dict[Settings, list[float]] = {}
    for member in sweep.members:
        if member in results:
            group = scores.setdefault(member.without('seed'), [])
            group.append(score_of(results[member]))
    return [
        {'settings': dict(settings), **summary(values), 'best': max(values)}
        for settings, values in scores.items()]


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
    lines.append(f'\nbest: {winner.name} ({metric} {score_of(best):.4f})')
    hours = sum(map(sweep.seconds, results)) / 3600
    hosts = {result.get('host', '') for result in results.values()} - {''}
    lines.append(
        f"{len(results)} runs, {hours:.2f} hours of a process in all, on "
        f"{', '.join(sorted(hosts))}")
    deleted = len(results) - sweep.keep
    if deleted > 0:
        kept = '; '.join(member.name for member in list(results)[: sweep.keep])
        lines.append(f'the checkpoints of {deleted} runs are deleted; kept: {kept}')
    failed = [member.name for member in sweep.members if member not in results]
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
