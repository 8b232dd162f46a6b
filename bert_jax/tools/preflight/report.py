"""What preflight prints of a record: the verdict, what to change, and tables."""

import math
from collections.abc import Sequence
from typing import Any

from bert_jax.tools.preflight.hours import PUBLISHED_SHARES, step_hours, total_hours

Record = dict[str, Any]

_MOST_OF_A_CARD = 0.92  # the share of a GPU's memory that jax can be told to take


def verdict(record: Record) -> str:
    """Whether the run fits and what it takes, in one line; then what to change, a line each."""
    topology = record['topology']
    lines = []
    if record['fits']:
        lines.append(f'{topology}: {_what_it_takes(record)}')
    for phase in record['phases']:
        if not phase['fits']:
            lines.append(
                f"{topology}: {phase['name']} does not fit: it takes {_gb(_needed(phase))} GB of a "
                f"{_unit(record)}'s {_gb(phase['bytes_limit'])}; {_remedy(phase)}")
        elif 'mfu' in phase:
            if 'kernels' in phase:
                lines.append(f"  {phase['name']}: {_kernels_line(phase)}")
            advice = _advice(phase, record)
            if advice:
                lines.append(f"  {phase['name']}: {advice}")
    return '\n'.join(lines)


def _unit(record: Record) -> str:
    """The unit for which bytes, rows and messages are counted: a card, a chip or its device."""
    if _is_of_cards(record):
        return 'card'
    return 'chip' if record['devices'] == record['chips'] else 'device'


def _is_of_cards(record: Record) -> bool:
    """Whether it is of GPUs, of which the compiler tells no cycles."""
    return 'cycles_per_sequence' not in record['phases'][0]


def _what_it_takes(record: Record) -> str:
    """Memory, hours and cost of a run that fits."""
    phases = record['phases']
    limit = phases[0]['bytes_limit']
    needed = max(_needed(phase) for phase in phases)
    others = record.get('other_hours', {})
    hours = total_hours(phases, others)
    chip = 'card' if _is_of_cards(record) else 'chip'
    unit, per_hour = ('hours', 1) if hours >= 1 else ('minutes', 60)  # of a fine-tuning
    text = (
        f"fits, {_gb(needed)} GB of a {_unit(record)}'s {_gb(limit)}; about "
        f"{per_hour * hours:,.1f} {unit}, {_few_digits(hours * record['chips'])} {chip}-hours")
    if 'dollars' in record:
        text += f", ${_few_digits(record['dollars'])}"
    text += f': {_steps_in_words(record, per_hour)}'
    if others:
        text += f"; {per_hour * sum(others.values()):,.1f} for {', '.join(others)}"
    if not _is_of_cards(record):
        least, most = PUBLISHED_SHARES
        text += f'; published runs reach {least:.0%} to {most:.0%}'
    return text


def _few_digits(number: float) -> str:
    """A number for a line: 61, or 0.12 where there would be hardly a digit."""
    return f'{number:,.0f}' if number >= 10 else f'{number:.2g}'


def _steps_in_words(record: Record, per_hour: int) -> str:
    """The time of the steps in a unit, so many an hour; each end with its share of the peak."""
    steps = step_hours(record['phases'])
    least = per_hour * steps.least
    most = per_hour * steps.most
    if record['devices'] == 1 and _is_of_cards(record):  # no message that could be waited for
        return f'steps {most:,.1f} at {steps.share_at_most:.0%} of the peak'
    return (
        f'steps {least:,.1f} at {steps.share_at_least:.0%} of the peak to {most:,.1f} at '
        f'{steps.share_at_most:.0%}')


def _kernels_line(phase: Record) -> str:
    """Where the time of a step on GPUs goes, in one line."""
    seconds: dict[str, float] = {}
    for scope in phase['scopes']:
        seconds[scope['scope']] = seconds.get(scope['scope'], 0.0) + scope['seconds']
    if phase['collective_bytes']:
        seconds['messages'] = phase['seconds']['collectives']
    parts = []
    for part in sorted(seconds, key=lambda part: -seconds[part]):
        parts.append(f'{part} {1e3 * seconds[part]:,.1f}')
    return (
        f"{phase['kernels']:,} kernels and {phase['bytes_moved'] / 1e9:,.1f} GB a step, "
        f"{1e3 * phase['step_seconds']:,.1f} ms: {', '.join(parts)}; at most about "
        f"{phase['largest_rows_at_once']:,} rows at once fit")


def _needed(phase: Record) -> int:
    return max(phase['bytes_per_chip'], phase['evaluation_bytes_per_chip'] or 0)


def _gb(size: float) -> str:
    return f'{size / 1e9:.2f}'


def _remedy(phase: Record) -> str:
    """The setting that may make a phase fit and changes the run least."""
    if phase['bytes_per_chip'] <= phase['bytes_limit']:
        return 'lower config.train.eval_batch_size'
    if 'card_bytes' in phase and _needed(phase) <= _MOST_OF_A_CARD * phase['card_bytes']:
        return f'let jax take more of it: XLA_PYTHON_CLIENT_MEM_FRACTION={_MOST_OF_A_CARD}'
    rows = phase['rows_at_once']
    most_rows = phase['largest_rows_at_once']
    if most_rows:
        factor = 2 ** max(1, math.ceil(math.log2(rows / most_rows)))
        if factor <= rows:
            return f"try --config.train.accumulation_steps={phase['accumulation_steps'] * factor}"
    return 'try --config.model.remat=full, then --config.mesh.tensor=2'


def _advice(phase: Record, record: Record) -> str:
    """Advice that may bring a phase nearer to the chips' peak; '' if there is none."""
    parts = phase['accumulation_steps']
    if parts > 1 and phase['largest_rows_at_once'] >= 2 * phase['rows_at_once']:
        return f'fewer parts fit: try --config.train.accumulation_steps={parts // 2}'
    if any(scope['pass'] == 'forward again' for scope in phase['scopes']):
        return 'layers are computed twice: try --config.model.remat=none'
    return '' if _is_of_cards(record) else _more_rows(phase, record)


def _more_rows(phase: Record, record: Record) -> str:
    """Advice for a phase in which work that does not depend on the rows takes long; or ''."""
    step = phase['step_seconds']
    fixed = _fixed_seconds(phase)
    of_rows = step - fixed
    # So many times the rows per chip, if they fit, that `fixed` is a fifth of a step or less.
    wanted = 8 * fixed / max(of_rows, 1e-9)
    fitting = phase['largest_rows_at_once'] / max(phase['rows_at_once'], 1)
    most = min(wanted, fitting, record['chips'])
    times = 2 ** int(math.log2(max(most, 1)))
    if fixed < step / 5 or times == 1:
        return ''
    slowdown = (fixed + times * of_rows) / step
    chips = record['chips'] // times
    hours = phase['hours'] * slowdown
    text = (
        f'{fixed / step:.0%} of a step is messages and updates, the same for any rows; '
        f"{times * phase['rows_per_chip']:g} rows a {_unit(record)} fit, for about "
        f"{phase['mfu'] * times / slowdown:.0%} of the peak: {chips} of the chips take about "
        f'{hours:,.1f} hours and {hours * chips:,.0f} chip-hours, or with '
        f"--config.train.batch_size={times * phase['batch_size']}")
    if record['mesh']['tensor'] > 1:
        text += ', or try --config.mesh.tensor=1'
    return text


def _fixed_seconds(phase: Record) -> float:
    """Seconds of a step that are the same for any number of rows: messages and the update."""
    update = sum(
        scope['cycles_per_sequence'] for scope in phase['scopes'] if scope['pass'] == 'update')
    seconds = phase['seconds']
    updating = seconds['compute'] * update / max(phase['cycles_per_sequence'], 1)
    result: float = seconds['collectives'] + updating
    return result


def tables(record: Record) -> str:
    """A whole record as text tables."""
    mesh = ' x '.join(f'{axis} {size}' for axis, size in record['mesh'].items())
    unit = _unit(record)
    devices = ''
    if unit == 'device':
        devices = f" of {record['devices'] // record['chips']} devices each"
    known = ', '.join(f'{name} {version}' for name, version in record['versions'].items())
    chips = 'cards' if unit == 'card' else 'chips'
    parts = [
        f"{record['config']} on {record['topology']}: {record['chips']} {record['chip']} "
        f"{chips}{devices}, mesh {mesh}\n{known}; {record['date']}",
        _phase_table(record['phases'], unit),
    ]
    for phase in record['phases']:
        if 'mfu' in phase:
            table = _kernel_table(phase) if 'kernels' in phase else _scope_table(phase)
            parts.append(f"{phase['name']}, by part\n{table}")
        if phase['collectives']:
            parts.append(f"{phase['name']}, messages a step and {unit}\n{_message_table(phase)}")
    return '\n\n'.join(parts)


def _phase_table(phases: Sequence[Record], unit: str) -> str:
    """Memory and time, a column for each phase."""
    columns = [_phase_column(phase, unit) for phase in phases]
    rows = [['', *(phase['name'].split(' (')[0] for phase in phases)]]
    for title in max(columns, key=len):
        rows.append([title, *(column.get(title, '-') for column in columns)])
    return grid(rows)


def _phase_column(phase: Record, unit: str) -> dict[str, str]:
    """A phase's column, by row title."""
    column = {
        'steps': f"{phase['steps']:,}",
        'batch x length': f"{phase['batch_size']:,} x {phase['max_seq_length']}",
        f'rows a {unit}, in parts': f"{phase['rows_per_chip']:g}, {phase['accumulation_steps']}",
    }
    for kind, size in phase['bytes'].items():
        column[f'GB a {unit}: {kind}'] = _gb(size)
    column['  all'] = _gb(phase['bytes_per_chip'])
    if phase['evaluation_bytes_per_chip'] is not None:
        column['  in evaluation'] = _gb(phase['evaluation_bytes_per_chip'])
    column |= {
        '  there are': _gb(phase['bytes_limit']),
        'rows at once, and at most about':
            f"{phase['rows_at_once']:g}, {phase['largest_rows_at_once']}",
    }
    if 'kernels' in phase:
        column |= _card_time_column(phase)
    elif 'mfu' in phase:
        column |= _time_column(phase)
    return column


def _card_time_column(phase: Record) -> dict[str, str]:
    seconds = phase['seconds']
    return {
        'kernels a step': f"{phase['kernels']:,}",
        'GB that they move': f"{phase['bytes_moved'] / 1e9:,.1f}",
        'MB of messages a step': f"{phase['collective_bytes'] / 1e6:,.0f}",
        'ms a step: products': f"{1e3 * seconds['products']:,.1f}",
        '  other kernels': f"{1e3 * seconds['others']:,.1f}",
        '  messages': f"{1e3 * seconds['collectives']:,.1f}",
        '  of which it waits for': f"{1e3 * seconds['waiting']:,.1f}",
        'sequences/s': f"{phase['sequences_per_second']:,.0f}",
        'hours': f"{phase['hours']:,.1f}",
    }


def _time_column(phase: Record) -> dict[str, str]:
    seconds = phase['seconds']
    return {
        'kcycles a sequence': f"{phase['cycles_per_sequence'] / 1e3:,.0f}",
        '  by the schedule': f"{phase['scheduled_cycles_per_sequence'] / 1e3:,.0f}",
        '  at the peak': f"{phase['floor_cycles_per_sequence'] / 1e3:,.0f}",
        'MB of messages a step': f"{phase['collective_bytes'] / 1e6:,.0f}",
        'ms a step: compute': f"{1e3 * seconds['compute']:,.1f}",
        '  messages': f"{1e3 * seconds['collectives']:,.1f}",
        '  by the schedule, compute': f"{1e3 * seconds['scheduled']:,.1f}",
        '  and waiting for messages': f"{1e3 * seconds['waiting']:,.1f}",
        'hours': f"{phase['hours']:,.1f}",
    }


def _scope_table(phase: Record) -> str:
    whole = max(phase['cycles_per_sequence'], 1)
    rows = [['', 'pass', 'kcycles a sequence', '%', 'by schedule', 'waits for']]
    for scope in phase['scopes']:
        cycles = scope['cycles_per_sequence']
        rows.append([
            scope['scope'], scope['pass'], f'{cycles / 1e3:,.1f}', f'{100 * cycles / whole:.1f}',
            f"{scope['scheduled_cycles_per_sequence'] / 1e3:,.1f}", scope['waits_for']])
    return grid(rows)


def _kernel_table(phase: Record) -> str:
    whole = phase['seconds']['compute']
    rows = [['', 'pass', 'kernels', 'GB', 'TFLOP of products', 'ms', '%']]
    for scope in phase['scopes']:
        rows.append([
            scope['scope'], scope['pass'], f"{scope['kernels']:,}", f"{scope['bytes'] / 1e9:,.2f}",
            f"{scope['flops'] / 1e12:,.2f}", f"{1e3 * scope['seconds']:,.2f}",
            f"{100 * scope['seconds'] / whole:.1f}"])
    return grid(rows)


def _message_table(phase: Record) -> str:
    rows = [['', 'largest array', 'count', 'MB', 'ms', 'of']]
    for entry in phase['collectives']:
        rows.append([
            entry['kind'], entry['largest'], f"{entry['count']:,}", f"{entry['bytes'] / 1e6:,.1f}",
            f"{1e3 * entry['seconds']:,.2f}", entry['scope']])
    return grid(rows)


def grid(rows: Sequence[Sequence[str]]) -> str:
    """A text table with aligned columns, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    heading, *others = [_aligned(row, widths) for row in rows]
    rule = '-' * max(map(len, [heading, *others]))
    return '\n'.join([heading, rule, *others])


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = cells
    right = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
    return '  '.join([first.ljust(widths[0]), *right])
