// Draws the curves and the attention of the page from the data in it.
'use strict';

const data = JSON.parse(document.getElementById('data').textContent);
const NS = 'http://www.w3.org/2000/svg';
const DASHES = ['', '7 3', '2 3', '9 3 2 3'];
const ARROWS = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};

function make(parent, name, attributes = {}, text = '') {
  const svg = name === 'svg' || parent.namespaceURI === NS;
  const made = svg ? document.createElementNS(NS, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return parent.appendChild(made);
}

const colour = run => `var(--run${run % 8})`;
const dash = run => DASHES[Math.floor(run / 2) % 4];
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

function short(x) {
  if (x === 0) return '0';
  const size = Math.abs(x);
  if (size >= 1e15 || size < 1e-3) return x.toExponential(1).replace('.0', '').replace('e+', 'e');
  for (const [unit, name] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e4, 'k']])
    if (size >= unit) return +(x / (name === 'k' ? 1e3 : unit)).toPrecision(3) + name;
  return String(+x.toPrecision(4));
}

function ticks(low, high) {
  const raw = (high - low) / 4, unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 2.5, 5, 10].find(n => n * unit >= raw);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function radios(parent, name, choices, chosen, change) {
  const set = make(parent, 'fieldset');
  make(set, 'legend', {}, name);
  choices.forEach((choice, i) => {
    const label = make(set, 'label');
    const input = make(label, 'input', {type: 'radio', name, value: i});
    input.checked = i === chosen;
    input.addEventListener('change', () => change(i));
    make(label, 'span', {}, choice);
  });
}

// The value of points at a place on an axis, from the two beside it.
function between(points, axis, place) {
  const next = points.findIndex(p => p[axis] >= place);
  if (next < 0 || (next === 0 && points[0][axis] > place)) return NaN;
  const [a, b] = [points[Math.max(next - 1, 0)], points[next]];
  return b[axis] === a[axis] ? b[3] : a[3] + (b[3] - a[3]) * (place - a[axis]) / (b[axis] - a[axis]);
}

// The series of all runs but the first, less the first run's.
function differences(series, axis) {
  return series.filter(s => s.run).flatMap(s => {
    const first = series.find(other => !other.run && other.held_out === s.held_out);
    const points = first ? s.points.map(p => {
      const less = between(first.points, axis, p[axis]);
      return p.map((v, i) => i < 3 ? v : v - less);
    }).filter(p => !isNaN(p[3])) : [];
    return points.length ? [{...s, points}] : [];
  });
}

// One metric: its series are {run, held_out, points: [[step, tokens, FLOPs, value], ...]}, the
// value followed by the lowest and the highest of the runs that it is the mean of.
function chart(parent, {title, series}, axis, minus) {
  const W = 360, H = 210, L = 46, R = 10, T = 16, B = 24;
  if (minus) series = differences(series, axis);
  if (!series.length) return;
  let guess = minus ? 0 : data.guessing[title];
  const xs = series.flatMap(s => s.points.map(p => p[axis]));
  const xHigh = Math.max(...xs) || 1;
  // A steep beginning would leave the rest no room.
  const later = series.flatMap(s => s.points.filter(p => p[axis] >= xHigh / 10));
  const ys = (later.length ? later : series.flatMap(s => s.points)).flatMap(p => p.slice(3));
  let [low, high] = [Math.min(...ys), Math.max(...ys)];
  if (guess > 2 * high - low || guess < 2 * low - high) guess = undefined;  // too far away
  if (guess !== undefined) [low, high] = [Math.min(low, guess), Math.max(high, guess)];
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
  const x = v => L + v / xHigh * (W - L - R), y = v => T + (high - v) / (high - low) * (H - T - B);

  const figure = make(parent, 'figure');
  make(figure, 'h3', {}, title);
  const last = series.map(s => `${data.runs[s.run]}${s.held_out ? ' held out' : ''} `
    + short(s.points.at(-1)[3])).join(', ');
  const svg = make(figure, 'svg', {viewBox: `0 0 ${W} ${H}`, tabindex: 0, role: 'img',
    'aria-label': `${title} over ${data.axes[axis]}; at the end: ${last}. Arrow keys read it.`});
  for (const v of ticks(low, high)) {
    make(svg, 'line', {class: 'axis', x1: L, x2: W - R, y1: y(v), y2: y(v)});
    make(svg, 'text', {x: L - 5, y: y(v) + 4, 'text-anchor': 'end'}, short(v));
  }
  for (const v of ticks(0, xHigh))
    make(svg, 'text', {x: Math.min(x(v), W - 14), y: H - 8, 'text-anchor': 'middle'}, short(v));
  const begins = series.flatMap(s => data.phases[s.run]).filter(p => p[axis] < xHigh);
  begins.sort((a, b) => a[axis] - b[axis]).forEach((p, i) => {
    make(svg, 'line', {class: 'cursor', x1: x(p[axis]), x2: x(p[axis]), y1: T, y2: H - B});
    if (!i || x(p[axis]) - x(begins[i - 1][axis]) > 20)
      make(svg, 'text', {x: x(p[axis]), y: T - 4, 'text-anchor': 'middle'}, p[3]);
  });
  if (guess !== undefined) {
    make(svg, 'line', {class: 'guessing', x1: L, x2: W - R, y1: y(guess), y2: y(guess)});
    make(svg, 'text', {x: L + 4, y: y(guess) + (y(guess) < H / 2 ? 12 : -4)},
      minus ? data.runs[0] : 'guessing');
  }
  const plot = make(svg, 'svg', {y: T - 3, height: H - T - B + 6,
    viewBox: `0 ${T - 3} ${W} ${H - T - B + 6}`});
  for (const s of series) {
    const ends = i => s.points.map(p => `${x(p[axis])},${y(p[i])}`);
    make(plot, 'polygon', {fill: colour(s.run), 'fill-opacity': .15,
      points: [...ends(4), ...ends(5).reverse()].join(' ')});
    make(plot, 'polyline', {stroke: colour(s.run), fill: 'none',
      'stroke-width': s.held_out ? 2 : 1.2, 'stroke-dasharray': dash(s.run),
      points: ends(3).join(' ')});
    if (s.held_out || s.points.length === 1)
      for (const p of s.points)
        make(plot, 'circle', {cx: x(p[axis]), cy: y(p[3]), r: 2.6, fill: colour(s.run)});
  }

  const places = [...new Set(xs)].sort((a, b) => a - b);
  const cursor = make(svg, 'line', {class: 'cursor', y1: T, y2: H - B, visibility: 'hidden'});
  const said = make(figure, 'output', {'aria-live': 'polite'});
  let at = places.length - 1;
  function read(i) {
    at = clamp(i, 0, places.length - 1);
    const place = places[at];
    cursor.setAttribute('visibility', 'visible');
    cursor.setAttribute('x1', x(place));
    cursor.setAttribute('x2', x(place));
    said.textContent = `${short(place)} ${data.axes[axis]}: ` + series.map(s => {
      const point = s.points.findLast(p => p[axis] <= place);
      return point && `${data.runs[s.run]}${s.held_out ? ' (held out)' : ''} ${short(point[3])}`;
    }).filter(Boolean).join(', ');
  }
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect();
    const value = ((event.clientX - box.left) / box.width * W - L) / (W - L - R) * xHigh;
    const next = places.findIndex(p => p >= value);
    read(next < 0 ? places.length - 1 : next);
  });
  svg.addEventListener('keydown', event => {
    const [, by] = ARROWS[event.key] || [0, 0];
    if (!by) return;
    event.preventDefault();
    read(at + by);
  });
}

function curves(section) {
  const grids = make(section, 'div');
  let axis = 0, minus = 0;
  function draw() {
    grids.replaceChildren();
    const grid = make(grids, 'div', {class: 'grid'});
    for (const one of data.charts) chart(grid, one, axis, minus);
  }
  radios(section, 'against', data.axes, 0, i => { axis = i; draw(); });
  if (data.runs.length > 1)
    radios(section, 'show', ['values', `minus ${data.runs[0]}`], 0, i => { minus = i; draw(); });
  section.append(grids);
  draw();
}

function attention(section) {
  const runs = data.attention.map(a => a && {
    ...a, bytes: Uint8Array.from(atob(a.values), c => c.charCodeAt(0))});
  let run = runs.findIndex(Boolean), layer = 0, head = 0;  // head 0 is the mean of all
  const controls = make(section, 'div');
  const picture = make(section, 'figure', {id: 'picture'});

  function draw() {
    const {tokens, heads, bytes} = runs[run], n = tokens.length;
    const wanted = head ? [head - 1] : [...Array(heads).keys()];
    const of = (i, j) => wanted.reduce(
      (sum, h) => sum + bytes[((layer * heads + h) * n + i) * n + j], 0) / wanted.length / 255;
    const C = 22, L = 8 + 7 * Math.max(...tokens.map(t => t.length)), S = L + n * C + 4;
    picture.replaceChildren();
    const most = Math.max(...tokens.flatMap((_, i) => tokens.map((_, j) => of(i, j))));
    const svg = make(picture, 'svg', {viewBox: `0 0 ${S} ${S}`, tabindex: 0, role: 'img',
      'aria-label': `attention, layer ${layer + 1}, ${head ? `head ${head}` : 'mean of all heads'}`
        + ': a row a token, a column each that it sees. Arrow keys read it.'});
    tokens.forEach((token, i) => {
      const place = L + (i + .68) * C;
      make(svg, 'text', {x: L - 5, y: place, 'text-anchor': 'end'}, token);
      make(svg, 'text', {transform: `translate(${place},${L - 5}) rotate(-90)`}, token);
    });
    for (let i = 0; i < n; i++)
      for (let j = 0; j < n; j++)
        make(svg, 'rect', {x: L + j * C, y: L + i * C, width: C - 1, height: C - 1,
          fill: 'var(--heat)', 'fill-opacity': Math.max(of(i, j) / most, .03).toFixed(3)});
    const mark = make(svg, 'rect', {width: C - 1, height: C - 1, fill: 'none',
      stroke: 'var(--run1)', 'stroke-width': 2, visibility: 'hidden'});
    const said = make(picture, 'output', {'aria-live': 'polite'});
    const where = `layer ${layer + 1}, ${head ? `head ${head}` : 'mean of all heads'}`;
    make(picture, 'figcaption', {}, `${data.runs[run]}, ${where}. Each row adds up to 1. `).append(
      '0 ', make(document.createElement('p'), 'span', {class: 'scale'}), ` ${most.toFixed(2)}`);
    let [row, column] = [0, 0];
    function read(i, j) {
      [row, column] = [clamp(i, 0, n - 1), clamp(j, 0, n - 1)];
      mark.setAttribute('visibility', 'visible');
      mark.setAttribute('x', L + column * C);
      mark.setAttribute('y', L + row * C);
      const most = [...Array(n).keys()].sort((a, b) => of(row, b) - of(row, a)).slice(0, 3);
      said.textContent = `${tokens[row]} \u2192 ${tokens[column]} ${of(row, column).toFixed(2)}; most: `
        + most.map(j => `${tokens[j]} ${of(row, j).toFixed(2)}`).join(', ');
    }
    svg.addEventListener('pointermove', event => {
      const box = svg.getBoundingClientRect(), scale = S / box.width;
      read(Math.floor(((event.clientY - box.top) * scale - L) / C),
        Math.floor(((event.clientX - box.left) * scale - L) / C));
    });
    svg.addEventListener('keydown', event => {
      const by = ARROWS[event.key];
      if (!by) return;
      event.preventDefault();
      read(row + by[0], column + by[1]);
    });
  }
  function ask() {
    controls.replaceChildren();
    const {layers, heads} = runs[run], there = runs.map((r, i) => r ? i : -1).filter(i => i >= 0);
    [layer, head] = [Math.min(layer, layers - 1), Math.min(head, heads)];
    const numbers = n => [...Array(n).keys()].map(i => String(i + 1));
    if (there.length > 1)
      radios(controls, 'run', there.map(i => data.runs[i]), there.indexOf(run), i => {
        run = there[i];
        ask();
        draw();
        controls.querySelector('input[name=run]:checked').focus();
      });
    radios(controls, 'layer', numbers(layers), layer, i => { layer = i; draw(); });
    radios(controls, 'head', ['mean', ...numbers(heads)], head, i => { head = i; draw(); });
  }
  ask();
  draw();
}

for (const [id, draw] of Object.entries({curves, attention})) {
  const section = document.getElementById(id);
  if (section) draw(section);
}
