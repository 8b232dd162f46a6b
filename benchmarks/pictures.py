"""Draws two pictures of the documentation.

    python -m benchmarks.pictures step tests/fixtures/preflight_base.json docs/preflight_step.svg
    python -m benchmarks.pictures attention MODEL docs/attention.svg

`step` draws the cycles of a training step by part, from a record of preflight (--json). `attention`
draws where the tokens of a sentence look, in each head of a model, with the library.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

SENTENCE = 'He was born in the city, and he died there in 1902.'
INK = '#222'
FORWARD = '#26a69a'
BACKWARD = '#00695c'
UPDATE = '#90a4ae'
ESTIMATED = '#ffb74d'
COLORS = {'forward': FORWARD, 'backward': BACKWARD, 'update': UPDATE}
NAMES = {
    'output': 'feed-forward, second product',
    'intermediate': 'feed-forward, first product and gelu',
    'qkv': 'queries, keys, values',
    'attention': 'attention',
    'attention output': "attention's output product",
    'head': 'head: masked words, next sentence',
    'optimizer': 'optimizer',
}
WIDTH = 724
FAINTEST = 0.03  # share of a token's attention that is drawn


def text(x: float, y: float, content: str, size: int = 12, anchor: str = 'start') -> str:
    """A line of text."""
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
            f'fill="{INK}">{escape(content)}</text>')


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    """A filled rectangle."""
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill="{fill}"/>')


def svg(title: str, height: float, shapes: Sequence[str]) -> str:
    """A picture on a white ground."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        'font-family="sans-serif" role="img">',
        f'<title>{escape(title)}</title>', box(0, 0, WIDTH, height, '#fff'), *shapes, '</svg>']
    return '\n'.join(lines) + '\n'


def cycles_by_part(phase: dict[str, Any]) -> dict[str, dict[str, tuple[float, float]]]:
    """For each part of the model, by pass: thousand cycles a sequence, (scheduled, estimated)."""
    parts: dict[str, dict[str, tuple[float, float]]] = {}
    for scope in phase['scopes']:
        name = NAMES.get(scope['scope'], 'the rest')
        passes = parts.setdefault(name, {})
        scheduled, estimated = passes.get(scope['pass'], (0.0, 0.0))
        passes[scope['pass']] = (
            scheduled + scope['scheduled_cycles_per_sequence'] / 1000,
            estimated + scope['cycles_per_sequence'] / 1000)
    return parts


def total(passes: dict[str, tuple[float, float]], count: int) -> float:
    """Of all passes; by the schedules (count 0) or the estimates (1)."""
    return sum(counts[count] for counts in passes.values())


def draw_step(record: dict[str, Any]) -> str:
    """Bars of a training step's first phase."""
    phase = record['phases'][0]
    parts = cycles_by_part(phase)
    title = (
        f"A step of BERT-Base by part: {phase['rows_per_chip']:g} rows of "
        f"{phase['max_seq_length']} a chip on {record['topology']}, thousand cycles a sequence")
    shapes = [text(20, 24, title, 14)]
    legend = [('forward', FORWARD), ('backward', BACKWARD), ('update', UPDATE),
              ('all, as the compiler estimates', ESTIMATED)]
    x = 20
    for name, color in legend:
        shapes += [box(x, 38, 12, 12, color), text(x + 18, 49, name)]
        x += 110
    left = 250
    scale = (WIDTH - left - 60) / max(total(passes, 1) for passes in parts.values())
    y = 66.0
    for name, passes in sorted(parts.items(), key=lambda part: -total(part[1], 0)):
        shapes.append(text(left - 10, y + 16, name, anchor='end'))
        x = left
        for each in ('forward', 'backward', 'update'):
            width = passes.get(each, (0.0, 0.0))[0] * scale
            shapes.append(box(x, y, width, 14, COLORS[each]))
            x += width
        shapes.append(text(x + 6, y + 12, f'{total(passes, 0):.0f}', 11))
        estimated = total(passes, 1)
        shapes.append(box(left, y + 15, estimated * scale, 6, ESTIMATED))
        shapes.append(text(left + estimated * scale + 6, y + 23, f'{estimated:.0f}', 9))
        y += 34
    shapes.append(text(
        20, y + 14, f"In all {phase['scheduled_cycles_per_sequence'] / 1000:.0f} by the schedules "
        f"and {phase['cycles_per_sequence'] / 1000:.0f} by the estimates, without messages; the "
        f"products alone take {phase['floor_cycles_per_sequence'] / 1000:.0f}. "
        f"Compiled on {record['date']}.", 11))
    return svg(title, y + 30, shapes)


def draw_attention(folder: str, sentence: str) -> str:
    """A map for each head of a model: how much each token (row) looks at each other (column)."""
    import bert_jax

    bert = bert_jax.from_pretrained(folder)
    batch = bert.tokenizer([sentence])
    outputs = bert.module.apply({'params': bert.params}, **batch, output_attentions=True)
    names = [bert.tokenizer.pieces.vocab.tokens[i] for i in batch['input_ids'][0]]
    layers = np.asarray(outputs['attentions'])[:, 0]  # [layers, heads, from, to]
    num_layers, num_heads, num_tokens, _ = layers.shape
    cell = 14.0
    left = 76.0
    side = num_tokens * cell
    title = f'Where the tokens of a sentence look, in {num_layers * num_heads} heads of a tiny BERT'
    shapes = [text(20, 24, title, 14)]
    for layer, heads in enumerate(layers):
        for head, weights in enumerate(heads):
            x = left + head * (side + 96)
            y = 118 + layer * (side + 92)
            shapes.append(text(x, y - 66, f'layer {layer + 1}, head {head + 1}', 12))
            shapes += attention_map(x, y, cell, names, weights)
    return svg(title, 118 + num_layers * (side + 92) - 70, shapes)


def attention_map(
    x: float, y: float, cell: float, names: Sequence[str], weights: np.ndarray
) -> list[str]:
    """One map, with its tokens at the left and above it."""
    shapes = [box(x, y, len(names) * cell, len(names) * cell, '#eceff1')]
    cells = []
    for row, name in enumerate(names):
        shapes.append(text(x - 4, y + (row + 0.75) * cell, name, 10, 'end'))
        at = f'{x + (row + 0.75) * cell:.1f} {y - 4:.1f}'
        shapes.append(f'<g transform="translate({at}) rotate(-60)">{text(0, 0, name, 10)}</g>')
        for column, weight in enumerate(weights[row]):
            if weight >= FAINTEST:
                cells.append(
                    f'<path d="M{x + column * cell:g} {y + row * cell:g}h{cell - 1:g}'
                    f'v{cell - 1:g}h-{cell - 1:g}z" opacity="{float(weight) ** 0.7:.2f}"/>')
    return [*shapes, f'<g fill="{BACKWARD}">', *cells, '</g>']


def main() -> None:
    """Runs the command (see the top of this file)."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('picture', choices=('step', 'attention'))
    parser.add_argument('source', help='a JSON file of preflight, or a model')
    parser.add_argument('target', help='the SVG file to write')
    parser.add_argument('--text', default=SENTENCE, help='for attention')
    options = parser.parse_args()
    if options.picture == 'step':
        with open(options.source, encoding='utf-8') as file:
            picture = draw_step(json.load(file))
    else:
        picture = draw_attention(options.source, options.text)
    with open(options.target, 'w', encoding='utf-8') as file:
        file.write(picture)


if __name__ == '__main__':
    main()
