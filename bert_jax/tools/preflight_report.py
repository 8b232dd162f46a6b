"""What preflight found, as tables, and what changed since another time."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

Record = dict[str, Any]
_CHANGED = 0.002  # share from which a figure counts as changed


def tables(record: Record) -> str:
    """Everything of a record, for people."""
    phases = record['phases']
    mesh = ' x '.join(f'{axis} {size}' for axis, size in record['mesh'].items())
    versions = ', '.join(f'{name} {version}' for name, version in record['versions'].items())
    parts = [
        f"{record['config']} on {record['topology']}: {record['chips']} {record['chip']} chips, "
        f'mesh {mesh}\n{versions}; {record["date"]}',
        _grid([['', *(p['name'].split(' (')[0] for p in phases)]] + [
            [title, *(_cell(make, phase) for phase in phases)] for title, make in _ROWS
        ]),
    ]
    for phase in phases:
        if phase['cycles_per_sequence'] is not None:
            parts.append(f"{phase['name']}, thousands of cycles a sequence\n" + _scopes(phase))
            parts.append(f"{phase['name']}, messages a step and chip\n" + _grid([
                ['what', 'largest array', 'count', 'MB', 'of'],
                *([c['kind'], c['largest'], f"{c['count']:,}", f"{c['bytes'] / 1e6:,.1f}",
                   c['scope']] for c in phase['collectives']),
            ]))
            parts.append(f"{phase['name']}, largest arrays (not all at the same time)\n" + _grid([
                ['array', 'MB', 'count', 'of'],
                *([b['array'], f"{b['bytes'] / 1e6:,.0f}", str(b['count']), b['name'][-60:]]
                  for b in phase['largest_buffers']),
            ]))
    return '\n\n'.join([*parts, verdict(record)])


def _cell(make: Callable[[Record], str], phase: Record) -> str:
    try:
        return make(phase)
    except (KeyError, TypeError):  # of a phase that does not compile
        return '-'


def _gb(size: float) -> str:
    return f'{size / 1e9:.2f}'


_ROWS: tuple[tuple[str, Callable[[Record], str]], ...] = (
    ('steps', lambda p: f"{p['steps']:,}"),
    ('batch x length', lambda p: f"{p['batch_size']:,} x {p['max_seq_length']}"),
    ('rows a chip, in parts', lambda p: f"{p['rows_per_chip']:g}, {p['accumulation_steps']}"),
    ('GB a chip: parameters', lambda p: _gb(p['bytes']['parameters'])),
    ('  optimizer', lambda p: _gb(p['bytes']['optimizer'])),
    ('  batch', lambda p: _gb(p['bytes']['batch'])),
    ('  temporaries', lambda p: _gb(p['bytes']['temporaries'])),
    ('  results and code', lambda p: _gb(p['bytes']['results'] + p['bytes']['code'])),
    ('  all', lambda p: _gb(p['bytes_per_chip'])),
    ('  in evaluation', lambda p: _gb(p['evaluation_bytes_per_chip'])),
    ('  there are', lambda p: _gb(p['bytes_limit'])),
    ('fits', lambda p: 'yes' if p['fits'] else 'NO'),
    ('rows at once, and at most about',
     lambda p: f"{p['rows_at_once']:g}, {p['largest_rows_at_once']}"),
    ('FLOPs compiled / formula', lambda p: f"{p['flops_ratio']:.3f}"),
    ('kcycles a sequence', lambda p: f"{p['cycles_per_sequence'] / 1e3:,.0f}"),
    ('  at the peak', lambda p: f"{p['floor_cycles_per_sequence'] / 1e3:,.0f}"),
    ('  without estimate', lambda p: str(sum(k['count'] for k in p['without_estimate']))),
    ('MB of messages a step', lambda p: f"{p['collective_bytes'] / 1e6:,.0f}"),
    ('ms a step: compute', lambda p: f"{1e3 * p['seconds']['compute']:,.1f}"),
    ('  messages', lambda p: f"{1e3 * p['seconds']['collectives']:,.1f}"),
    ('sequences/s', lambda p: f"{p['sequences_per_second']:,.0f}"),
    ('MFU', lambda p: f"{100 * p['mfu']:.1f} %"),
    ('hours', lambda p: f"{p['hours']:,.1f}"),
    ('chip-hours', lambda p: f"{p['chip_hours']:,.0f}"),
)


def _scopes(phase: Record) -> str:
    passes = ('forward', 'forward again', 'backward', 'update')
    table: dict[str, dict[str, float]] = collections.defaultdict(dict)
    for entry in phase['scopes']:
        table[entry['scope']][entry['pass']] = entry['cycles_per_sequence'] / 1e3
    used = [p for p in passes if any(p in row for row in table.values())]
    rows = sorted(table.items(), key=lambda item: -sum(item[1].values()))
    text = _grid([['', *used, 'all', '%'], *(
        [scope, *(f'{row.get(p, 0):,.1f}' for p in used), f'{sum(row.values()):,.1f}',
         f"{100e3 * sum(row.values()) / phase['cycles_per_sequence']:.1f}"]
        for scope, row in rows
    )])
    for kernel in phase['without_estimate']:
        text += (f"\nwithout estimate: {kernel['of']}, {kernel['count']} times "
                 f"{kernel['cycles']:,} cycles by its {kernel['by']}")
    return text


def _grid(rows: list[list[str]]) -> str:
    """Columns: the first to the left, the others to the right, words (`of`) at the end as is."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    words = rows[0][-1] == 'of'
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        if words:
            cells[-1] = row[-1]
        lines.append('  '.join(cells).rstrip())
    return '\n'.join([lines[0], '-' * max(map(len, lines)), *lines[1:]])


def verdict(record: Record) -> str:
    """One paragraph: whether it fits and what it takes, or what to change."""
    lines = []
    for phase in record['phases']:
        if phase['fits']:
            continue
        needed = max(phase['bytes_per_chip'], phase['evaluation_bytes_per_chip'])
        line = (f"{phase['name']} does not fit: {_gb(needed)} GB a chip, of which there are "
                f"{_gb(phase['bytes_limit'])}")
        if change := phase.get('change'):
            settings = ' '.join(
                f'--config.{name}={value}' for name, value in change['settings'].items()
            )
            line += f"; with {settings} it takes {_gb(change['bytes_per_chip'])} GB and fits"
        lines.append(line)
    if not lines:
        lines.append(
            f"fits; {record['hours']:,.1f} hours ({record['hours'] / 24:.2f} days), "
            f"{record['chip_hours']:,.0f} chip-hours, without evaluation, saving and waiting"
        )
    return '\n'.join(lines)


def differences(before: Record, after: Record) -> str:
    """What changed from one record to another, phase by phase."""
    lines = []
    for field in ('config', 'topology', 'mesh', 'versions', 'remat', 'scan_layers'):
        if before.get(field) != after.get(field):
            lines.append(f'{field}: {before.get(field)} -> {after.get(field)}')
    for old, new in zip(before['phases'], after['phases'], strict=False):
        ours, theirs = _figures(new), _figures(old)
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            was, now = theirs.get(name), ours.get(name)
            if was == now:
                continue
            if not (was and now):
                lines.append(f"{new['name']}: {name}: {_short(was)} -> {_short(now)}")
            elif abs(now - was) > _CHANGED * abs(was):
                lines.append(f"{new['name']}: {name}: {_short(was)} -> {_short(now)} "
                             f'({100 * (now / was - 1):+.1f} %)')
    if len(before['phases']) != len(after['phases']):
        lines.append(f"phases: {len(before['phases'])} -> {len(after['phases'])}")
    return 'changed:\n' + '\n'.join(lines or ['nothing'])


def _figures(phase: Record) -> dict[str, float]:
    figures = {'fits': float(phase['fits'])}
    for name in ('steps', 'batch_size', 'max_seq_length', 'accumulation_steps', 'bytes_per_chip',
                 'cycles_per_sequence', 'flops_per_sequence', 'collective_bytes', 'step_seconds',
                 'chip_hours'):
        if phase.get(name) is not None:
            figures[name] = phase[name]
    for name, size in phase['bytes'].items():
        figures[f'bytes of {name}'] = size
    for entry in phase.get('scopes', ()):
        figures[f"cycles of {entry['scope']}, {entry['pass']}"] = entry['cycles_per_sequence']
    for entry in phase.get('collectives', ()):
        figures[f"bytes of {entry['kind']} of {entry['largest']}"] = entry['bytes']
    return figures


def _short(value: float | None) -> str:
    return '-' if value is None else f'{value:,.4g}' if value < 1e4 else f'{value:,.0f}'
