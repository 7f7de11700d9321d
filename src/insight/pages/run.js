// The page of runs: `brrr train --live` feeds it while a run goes on, `brrr report` hands it finished
// runs. What stands in `#data` and what comes by events has the same form: columns of numbers.
const data = JSON.parse(document.getElementById('data').textContent);
const runs = data.runs.map((r) => ({...r, tables: {}, sets: [], notes: [], samples: []}));
const several = runs.length > 1;
const kSvg = 'http://www.w3.org/2000/svg';
const by = (id) => document.getElementById(id);

function merge(run, news) {
  for (const [name, table] of Object.entries(news.tables ?? {})) {
    const mine = (run.tables[name] ??= {});
    for (const [column, values] of Object.entries(table.columns))
      mine[column] = (mine[column] ?? []).slice(0, table.from).concat(values);
  }
  run.sets.push(...(news.sets ?? []));
  run.notes.push(...(news.notes ?? []));
  run.samples.push(...(news.samples ?? []));
}

// ---- numbers as people read them

const commas = (v) => Math.round(v).toString().replace(/\B(?=(\d{3})+$)/g, ',');
function short(v) {
  if (v === null || v === undefined || !isFinite(v)) return '–';
  const a = Math.abs(v);
  if (a >= 1e3 && a < 1e9) return commas(v);
  if (a !== 0 && (a < 1e-3 || a >= 1e9)) return (+v.toPrecision(3)).toExponential();
  return +v.toPrecision(4) + '';
}
const percent = (v) => (v === null || v === undefined ? '–' : (100 * v).toFixed(1) + '%');
function bytes(v) {
  if (v === null || v === undefined) return '–';
  let unit = 0;
  for (; v >= 1024 && unit < 4; ++unit) v /= 1024;
  return (unit ? v.toFixed(v < 10 ? 2 : v < 100 ? 1 : 0) : v) + ['B', 'KiB', 'MiB', 'GiB', 'TiB'].map((u) => ' ' + u)[unit];
}
function duration(s) {
  if (s === null || s === undefined || !(s >= 0)) return '–';
  s = Math.round(s);
  const two = (n) => String(n).padStart(2, '0');
  const clock = two(Math.floor(s / 60) % 60) + ':' + two(s % 60);
  return s >= 3600 ? Math.floor(s / 3600) + ':' + clock : clock.replace(/^0/, '');
}

// ---- along what: steps, or how long and how much a run had trained after a step

const kAxes = {
  step: {name: 'steps', units: [[1, 'steps']]},
  seconds: {name: 'time', units: [[1, 'seconds'], [60, 'minutes'], [3600, 'hours'], [86400, 'days']]},
  tokens: {name: 'tokens', units: [[1, 'tokens'], [1e3, 'thousand tokens'], [1e6, 'million tokens'], [1e9, 'billion tokens']]},
};
let axis = 'step';
// The step in the units of the axis; null where the run's log does not say.
function along(run, step) {
  if (axis === 'step') return step;
  const t = run.tables.steps, values = t?.[axis];
  if (!values?.length) return null;
  let low = 0, high = t.step.length - 1;
  if (step >= t.step[high]) return values[high];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (t.step[middle] < step) low = middle + 1;
    else high = middle;
  }
  const before = low > 0 ? [t.step[low - 1], values[low - 1]] : [0, 0], share = (step - before[0]) / (t.step[low] - before[0]);
  return values[low] === null || before[1] === null ? null : before[1] + share * (values[low] - before[1]);
}
// The largest unit of which the axis has at least two.
function unitOf(high) {
  return [...kAxes[axis].units].reverse().find(([size]) => high >= 2 * size) ?? kAxes[axis].units[0];
}

// ---- what is drawn: a chart is a title, how its values are written, and its lines for each run

// A moving average, twice: about a fortieth of the points.
function trend(values) {
  let now = values;
  const half = Math.floor(values.length / 80);
  for (let pass = 0; half > 0 && pass < 2; ++pass) {
    const sum = [0], count = [0];
    now.forEach((v, i) => {
      sum.push(sum[i] + (v ?? 0));
      count.push(count[i] + (v === null ? 0 : 1));
    });
    now = now.map((v, i) => {
      const h = Math.min(half, Math.floor(i / 4)), a = i - h, b = Math.min(now.length, i + h + 1);
      return v === null ? null : (sum[b] - sum[a]) / (count[b] - count[a]);
    });
  }
  return now;
}
const named = (run, name) => (several ? run.name + (name ? ': ' + name : '') : name);
// One line for each run from a column.
function plain(table, column, name) {
  return (run, i) => {
    const t = run.tables[table];
    return t?.[column]?.some((v) => v !== null)
      ? [{name: named(run, name), x: t.step, y: t[column], colour: i}] : [];
  };
}
function lossLines(run, i) {
  const t = run.tables.steps, v = run.tables.evaluations, lines = [];
  if (t) {
    if (!several) lines.push({name: 'train, each step', x: t.step, y: t.loss, colour: i, style: 'faint'});
    lines.push({name: named(run, 'train, smoothed'), x: t.step, y: trend(t.loss), colour: i});
  }
  // Losses on other tokens are another line: between them nothing is to be compared.
  const sets = [...new Set(v?.set ?? [])];
  sets.forEach((set, k) => {
    const of = (column) => column.filter((_, row) => v.set[row] === set), tokens = run.sets[set]?.tokens;
    const name = 'validation' + (sets.length > 1 ? (tokens ? ` on ${commas(tokens)} tokens` : k ? ' on other tokens' : '') : '');
    lines.push({name: named(run, name), x: of(v.step), y: of(v.val_loss), colour: several ? i : 1 + k, style: 'points'});
  });
  return lines;
}
const each = (...parts) => (run, i) => parts.flatMap((p, k) => p(run, i).map((l) => (several ? l : {...l, colour: k})));
const kRegimes = [['share_compute', 'compute-bound', '--compute'], ['share_bandwidth', 'bandwidth-bound', '--bandwidth'],
  ['share_overhead', 'overhead', '--overhead'], ['share_waiting', 'waiting for data', '--c3'], ['share_other', 'other', '--faint']];
const charts = [
  {title: 'Loss', y: 'nats', lines: lossLines, log: 'auto', text: short, marks: true, note: data.evaluations},
  {title: 'Gradient norm', y: 'norm of all gradients', lines: plain('steps', 'grad_norm', 'norm'), log: 'auto', text: short},
  {title: 'Learning rate', y: 'rate', lines: plain('steps', 'lr', 'rate'), zero: true, text: short},
  {title: 'Tokens per second', y: 'tokens/s', lines: plain('steps', 'tokens_per_second', 'tokens/s'), zero: true, text: short},
  {title: 'What bounds a step', y: 'share of the time', regimes: true, stack: {table: 'regimes', parts: kRegimes}, text: percent},
  {title: 'Waiting for data', y: 'share of the time', lines: plain('steps', 'waiting_share', 'waiting'), zero: true, top: 0.05, text: percent},
  {title: 'Memory', y: 'bytes', lines: each(plain('host', 'process_bytes', 'process'), plain('host', 'arena_bytes', 'arena')), zero: true, base: 1024, text: bytes},
  {title: 'Processors busy', y: 'share of the machine', lines: plain('host', 'cpu_busy', 'of this machine'), zero: true, top: 1, text: percent},
  {title: 'Processors used by this run', y: 'processors', lines: plain('host', 'cpu_processors', 'processors'), zero: true, text: short},
  {title: 'Processors used by other programs', y: 'processors', lines: plain('host', 'cpu_other_processors', 'processors'), zero: true, top: 1, text: short, optional: true},
  {title: 'Processor clock, MHz', y: 'MHz', lines: plain('host', 'cpu_clock_mhz', 'clock'), text: short, optional: true},
  {title: 'GPU busy, %', y: '%', lines: plain('gpu', 'gpu_busy_percent', 'busy'), zero: true, text: short, optional: true},
  {title: 'GPU memory', y: 'bytes', lines: plain('gpu', 'gpu_memory_used', 'used'), zero: true, base: 1024, text: bytes, optional: true},
  {title: 'GPU power, W', y: 'W', lines: plain('gpu', 'gpu_watts', 'power'), zero: true, text: short, optional: true},
  {title: 'GPU clock, MHz', y: 'MHz', lines: plain('gpu', 'gpu_clock_mhz', 'clock'), text: short, optional: true},
];

// ---- axes

function ticks(low, high, wanted) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const lead = raw / power, step = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k) out.push(k * step);
  return out;
}
function logTicks(low, high) {
  if (high / low < 10) return ticks(low, high, 4).filter((v) => v > 0);
  const out = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); ++e)
    for (const m of high / low < 1000 ? [1, 2, 5] : [1]) if (m * 10 ** e >= low && m * 10 ** e <= high) out.push(m * 10 ** e);
  return out;
}

// ---- drawing

function node(name, attributes, parent) {
  const n = document.createElementNS(kSvg, name);
  for (const [k, v] of Object.entries(attributes)) n.setAttribute(k, v);
  parent?.append(n);
  return n;
}
function label(parent, x, y, text, anchor) {
  const n = node('text', {x, y, 'text-anchor': anchor}, parent);
  n.textContent = text;
  return n;
}
const at = (v) => Math.round(10 * v) / 10;

// Of many points in a column of pixels the lowest and the highest are drawn.
function path(xs, ys, px, py, log) {
  let d = '', column = -1, low = 0, high = 0, pen = false;
  const flush = () => {
    if (column < 0) return;
    d += (pen ? 'L' : 'M') + at(column) + ' ' + at(low);
    if (high !== low) d += 'V' + at(high);
    pen = true;
  };
  for (let i = 0; i < xs.length; ++i) {
    const y = ys[i];
    if (y === null || (log && y <= 0)) {
      flush();
      column = -1;
      pen = false;
      continue;
    }
    const c = at(px(xs[i])), p = py(y);
    if (Math.abs(c - column) < 0.5) {
      low = Math.max(low, p);
      high = Math.min(high, p);
      continue;
    }
    flush();
    column = c;
    low = high = p;
  }
  flush();
  return d;
}

function span(values, log) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (v !== null && (!log || v > 0)) { if (v < low) low = v; if (v > high) high = v; }
  return [low, high];
}

class Chart {
  constructor(what, parent) {
    this.what = what;
    this.card = document.createElement('section');
    this.card.className = 'card chart';
    const head = document.createElement('h2');
    head.textContent = what.title;
    this.legend = document.createElement('p');
    this.legend.className = 'legend';
    this.svg = node('svg', {class: 'plot', role: 'img'});
    this.empty = document.createElement('p');
    this.empty.className = 'faint';
    this.note = document.createElement('p');
    this.note.className = 'faint';
    this.note.textContent = what.note ?? '';
    this.card.append(head, this.legend, this.svg, this.empty, this.note);
    parent.append(this.card);
    this.svg.addEventListener('pointermove', (e) => this.hover(e));
    this.svg.addEventListener('pointerleave', () => hideTip());
  }

  // Those of the runs that are shown, with their steps in the units of the axis.
  lines() {
    return this.stepLines().flatMap((l) => {
      const x = l.x.map((step) => along(runs[l.run], step)), known = (list) => list?.filter((_, i) => x[i] !== null);
      const line = {...l, x: known(x), y: known(l.y), steps: known(l.x), below: known(l.below), top: known(l.top)};
      return line.x.length ? [line] : [];
    });
  }

  stepLines() {
    const stack = this.what.stack;
    if (!stack)
      return runs.flatMap((run, i) => (run.hidden ? [] : this.what.lines(run, i).map((l) => ({...l, run: i}))));
    const t = runs[0].tables[stack.table];  // as one picture: only of one run
    if (several || !t) return [];
    let below = t.step.map(() => 0);
    return stack.parts.map(([column, name, colour]) => {
      const values = t[column], top = below.map((b, i) => b + (values[i] ?? 0)), line = {name, run: 0, x: t.step, y: values, below, top, colour};
      below = top;
      return line;
    });
  }

  draw() {
    const {what, svg} = this;
    const lines = this.lines();
    this.drawn = lines;
    svg.replaceChildren();
    this.legend.replaceChildren();
    const some = lines.some((l) => l.x.length > 0);
    this.card.hidden = !some && (what.optional || (what.regimes && several));
    svg.style.display = some ? '' : 'none';
    this.empty.textContent = some ? '' : what.regimes ? data.regimes : data.live ? 'no data yet' : runs.every((r) => r.hidden) ? 'no run is shown' :
      axis === 'step' || !this.stepLines().length ? 'not recorded' : `the log does not say how many ${axis} there were`;
    if (!some) return;
    if (what.caption) this.note.textContent = what.caption();
    const w = Math.max(what.small ? 180 : 260, this.card.clientWidth - (what.small ? 24 : 34)), h = what.small ? 150 : 234, left = what.small ? 46 : 64, right = w - 18, top = 26, bottom = h - 42;
    svg.setAttribute('viewBox', `0 0 ${w} ${h}`);
    svg.setAttribute('aria-label', what.title);
    let [x0, x1] = span(lines.flatMap((l) => l.x));
    if (x0 === x1) { x0 -= 1; x1 += 1; }
    // Spikes of single steps may leave the picture of a loss; trends and evaluations may not.
    const main = lines.filter((l) => l.style !== 'faint');
    let [y0, y1] = what.regimes ? [0, 1] : what.stack ? [0, what.most()] : span(main.flatMap((l) => l.y));
    const log = what.log === 'auto' && y0 > 0 && y1 > 2 * y0;
    if (!isFinite(y0)) [y0, y1] = [0, 1];
    if (what.zero) { y0 = Math.min(0, y0); if (y1 <= y0) y1 = what.top ?? y0 + 1; }
    if (what.top) y1 = Math.max(y1, what.top);
    if (y0 === y1) { y0 -= Math.abs(y0) * 0.1 || 1; y1 += Math.abs(y1) * 0.1 || 1; }
    if (!what.regimes && log) { y0 /= 1.03; y1 *= 1.03; }
    else if (!what.regimes && y1 !== what.top) { const room = 0.05 * (y1 - y0); y1 += room; if (!what.zero) y0 -= room; }
    const px = (v) => left + ((v - x0) / (x1 - x0)) * (right - left);
    const place = log ? (v) => Math.log(v / y0) / Math.log(y1 / y0) : (v) => (v - y0) / (y1 - y0);
    const py = (v) => Math.min(bottom, Math.max(top, bottom - place(v) * (bottom - top)));
    this.frame = {px, py, left, right, top, bottom, w};
    const unit = what.base ? what.base ** Math.floor(Math.log(Math.max(y1, 1)) / Math.log(what.base)) : 1;
    for (const v of log ? logTicks(y0, y1) : ticks(y0 / unit, y1 / unit, 4).map((t) => t * unit)) {
      node('path', {class: 'grid', d: `M${left} ${at(py(v))}H${right}`}, svg);
      label(svg, left - 8, at(py(v)) + 4, what.text(v), 'end');
    }
    const [size, unitName] = unitOf(x1);
    for (const v of ticks(x0 / size, x1 / size, Math.max(2, Math.floor(w / 85))))
      if (axis !== 'step' || Number.isInteger(v)) label(svg, at(px(v * size)), bottom + 16, short(v), 'middle');
    label(svg, (left + right) / 2, h - 6, unitName, 'middle').setAttribute('class', 'axis');
    if (!what.small) label(svg, left, 14, (what.y ?? '') + (log ? ', logarithmic' : ''), 'start').setAttribute('class', 'axis');
    for (const l of lines) {
      const colour = typeof l.colour === 'string' ? `var(${l.colour})` : `var(--c${l.colour % 6})`;
      if (l.top) {
        const up = l.x.map((x, i) => `${at(px(x))} ${at(py(l.top[i]))}`), down = l.x.map((x, i) => `${at(px(x))} ${at(py(l.below[i]))}`).reverse();
        const edge = l.x.length === 1 ? `M${left} ${at(py(l.below[0]))}H${right}V${at(py(l.top[0]))}H${left}Z` : `M${up.join('L')}L${down.join('L')}Z`;
        node('path', {class: 'area', d: edge, style: `fill:${colour}`}, svg);
      } else {
        node('path', {class: 'line ' + (l.style ?? ''), d: path(l.x, l.y, px, py, log), style: `stroke:${colour}`}, svg);
        if (l.style === 'points' || l.x.length === 1)
          l.x.forEach((x, i) => l.y[i] !== null && l.x.length <= 200 &&
            node('circle', {cx: at(px(x)), cy: at(py(l.y[i])), r: 3, style: `fill:${colour}`}, svg));
      }
      if (!l.name) continue;
      const item = document.createElement('span'), swatch = document.createElement('i');
      const last = [...l.y].reverse().find((v) => v !== null);
      swatch.style.background = colour;
      if (l.style === 'faint') swatch.style.opacity = 0.35;
      item.append(swatch, l.style === 'faint' ? l.name : `${l.name} ${what.text(last)}`);
      this.legend.append(item);
    }
    if (what.marks && !several)
      for (const n of runs[0].notes) {
        const x = along(runs[0], n.step);
        if (x !== null && x >= x0 && x <= x1) node('path', {class: 'mark', d: `M${at(px(x))} ${top}V${bottom}`}, svg);
      }
    this.hair = node('path', {class: 'hair', d: ''}, svg);
  }

  hover(e) {
    if (!this.frame) return;
    const box = this.svg.getBoundingClientRect(), x = ((e.clientX - box.left) / box.width) * this.frame.w;
    const nearest = (l, to) => l.x.reduce((best, v, i) => {
      const far = v === null ? Infinity : Math.abs(this.frame.px(v) - to);
      return far < best.far ? {far, i, x: v} : best;
    }, {far: Infinity});
    const best = this.drawn.map((l) => ({...nearest(l, x), l})).reduce((a, b) => (b.far < a.far ? b : a), {far: Infinity});
    if (!isFinite(best.far)) return;
    this.hair.setAttribute('d', `M${at(this.frame.px(best.x))} ${this.frame.top}V${this.frame.bottom}`);
    const step = best.l.steps[best.i], [size, unitName] = unitOf(best.x);
    const rows = [axis === 'step' ? `step ${commas(step)}` : `${short(best.x / size)} ${unitName}` + (several ? '' : `, step ${commas(step)}`)];
    for (const l of this.drawn) {
      // Another run shows the point beside it; the same run only what was noted at this step.
      const near = nearest(l, this.frame.px(best.x));
      if (l.name && (l.run === best.l.run ? l.steps[near.i] === step : near.far < 6)) rows.push(`${l.name}: ${this.what.text(l.y[near.i])}`);
    }
    if (this.what.marks && !several) for (const n of runs[0].notes) if (n.step === step) rows.push(n.text);
    showTip(rows, e.clientX, e.clientY);
  }
}

const tip = by('tip');
function showTip(rows, x, y) {
  tip.replaceChildren(...rows.map((text) => Object.assign(document.createElement('div'), {textContent: text})));
  tip.style.visibility = 'visible';
  tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - tip.offsetWidth - 8)) + 'px';
  tip.style.top = Math.max(8, Math.min(y + 14, innerHeight - tip.offsetHeight - 8)) + 'px';
}
function hideTip() {
  tip.style.visibility = 'hidden';
  for (const c of drawn) c.hair?.setAttribute('d', '');
}

// ---- what the reader chooses: the axis, and of several runs those that are shown

function button(text, pressed, press) {
  const b = Object.assign(document.createElement('button'), {textContent: text});
  b.setAttribute('aria-pressed', pressed);
  b.addEventListener('click', () => press(b));
  by('controls').append(b);
  return b;
}
by('controls').append('along ');
const choices = Object.entries(kAxes).map(([name, {name: text}]) => button(text, name === axis, (b) => {
  axis = name;
  choices.forEach((c) => c.setAttribute('aria-pressed', c === b));
  draw();
}));
if (several) {
  by('controls').append(document.createElement('span'));
  runs.forEach((run, i) => {
    const b = button(run.name, true, () => {
      run.hidden = !run.hidden;
      b.setAttribute('aria-pressed', !run.hidden);
      draw();
    });
    b.classList.add('run');
    const swatch = document.createElement('i');
    swatch.style.background = `var(--c${i % 6})`;
    b.prepend(swatch);
  });
}
const drawn = charts.map((what) => new Chart(what, by('charts')));

// ---- ranks: a small chart each, all on one scale

const kRankParts = [['compute_ms', 'computes', '--compute'], ['waited_ms', 'waits for others', '--c3']];
const rankTables = () => Object.keys(runs[0].tables).filter((name) => name.startsWith('rank ')).map((name) => runs[0].tables[name]);
const mostOfRanks = () => Math.max(...rankTables().flatMap((t) => t.step.map((_, i) => (t.compute_ms[i] ?? 0) + (t.waited_ms[i] ?? 0))));
const lastKnown = (values) => [...(values ?? [])].reverse().find((v) => v !== null);
function addRanks() {
  if (several) return;
  const known = by('ranks').children.length, count = rankTables().length;
  for (let rank = known; rank < count; ++rank) {
    const table = 'rank ' + rank, of = (column) => bytes(Math.round(lastKnown(runs[0].tables[table]?.[column]) ?? NaN) || undefined);
    drawn.push(new Chart({title: table, small: true, zero: true, stack: {table, parts: kRankParts}, most: mostOfRanks, text: (v) => short(v) + ' ms',
      caption: () => `process ${of('process_bytes')}, sends ${of('sent_bytes')} a step`}, by('ranks')));
  }
  by('ranked').hidden = !count;
}

// ---- what was not as it should be

function drawNotes() {
  const all = runs.flatMap((run) => run.notes.map((n) => ({...n, run: run.name})));
  by('notes').replaceChildren(...(all.length ? all : [{text: data.live ? 'Nothing unusual so far.' : 'Nothing unusual.'}]).map((n) => {
    const item = document.createElement('li');
    if (n.step !== undefined) item.append(Object.assign(document.createElement('b'), {textContent: (several ? n.run + ', ' : '') + 'step ' + commas(n.step) + ' '}));
    item.append(n.text);
    return item;
  }));
}

// What the models wrote, the newest first and open; what the reader opened stays open.
let written = 0;
function drawSamples() {
  const all = runs.flatMap((run) => run.samples.map((s) => ({...s, head: (several ? run.name + ', ' : '') + 'after step ' + commas(s.step)})));
  if (all.length === written) return;
  written = all.length;
  by('samples').hidden = !all.length;
  const open = new Set([...by('texts').children].slice(several ? 0 : 1).filter((d) => d.open).map((d) => d.dataset.head));
  const groups = new Map();
  for (const s of all) groups.set(s.head, [...(groups.get(s.head) ?? []), s.text]);
  const newest = new Set(runs.filter((run) => run.samples.length).map((run) => (several ? run.name + ', ' : '') + 'after step ' + commas(run.samples.at(-1).step)));
  by('texts').replaceChildren(...[...groups].reverse().map(([head, texts]) => {
    const details = document.createElement('details');
    details.dataset.head = head;
    details.open = newest.has(head) || open.has(head);
    details.append(Object.assign(document.createElement('summary'), {textContent: head}),
      ...texts.map((text) => Object.assign(document.createElement('pre'), {textContent: text})));
    return details;
  }));
}

// Other work on the machine makes a run slower than it is.
function warn() {
  const texts = runs.flatMap((run) => {
    const seen = (run.tables.host?.cpu_other_processors ?? []).filter((v) => v !== null).sort((a, b) => a - b);
    const others = seen[Math.floor(seen.length / 2)] ?? 0;
    return others > data.disturbing ? [`${several ? run.name + ': o' : 'O'}ther programs used ${others.toFixed(1)} CPUs: alone on its machine this run is faster than its figures say. `] : [];
  });
  by('busy').textContent = texts.join('');
}

// Once a second at most, and not where nobody looks: the browser may share the run's processors.
let asked = false, last = -1e9;
function draw() {
  if (asked) return;
  asked = true;
  setTimeout(() => requestAnimationFrame(() => {
    asked = false;
    last = performance.now();
    addRanks();
    for (const c of drawn) c.draw();
    drawNotes();
    drawSamples();
    warn();
  }), data.live ? Math.max(0, last + 1000 - performance.now()) : 0);
}
runs.forEach((run) => merge(run, run.news ?? {}));
draw();
addEventListener('resize', draw);

// ---- a run that goes on

const tiles = [['step', (n) => commas(n.step) + (n.total ? ' of ' + commas(n.total) : '')], ['train loss', (n) => short(n.loss)],
  ['validation loss', (n) => short(n.val_loss)], ['learning rate', (n) => short(n.lr)], ['gradient norm', (n) => short(n.grad_norm)],
  ['ms a step', (n) => short(n.step_ms)], ['tokens/s', (n) => short(n.tokens_per_second)], ['waiting for data', (n) => percent(n.waiting_share)],
  ['memory', (n) => bytes(n.process_bytes)], ['time left', (n) => duration(n.seconds_left)]];
function show(now) {
  by('status').textContent = now.status;
  by('status').dataset.state = now.state;
  by('progress').style.width = (now.total ? (100 * now.step) / now.total : 0) + '%';
  const scores = Object.keys(now.metrics ?? {}).map((name) => [name, (n) => short(n.metrics[name])]);
  by('tiles').replaceChildren(...[...tiles.slice(0, 3), ...scores, ...tiles.slice(3)].map(([name, text]) => {
    const tile = document.createElement('div'), value = document.createElement('b');
    value.textContent = text(now);
    tile.append(value, name);
    return tile;
  }));
}
if (data.live) {
  const events = new EventSource('events');
  events.onmessage = (e) => {
    const message = JSON.parse(e.data);
    merge(runs[0], message.news);
    show(message.now);
    draw();
    if (message.now.state !== 'running') events.close();
  };
  // What comes first after a new connection is everything.
  events.onopen = () => { runs[0].tables = {}; runs[0].sets = []; runs[0].notes = []; runs[0].samples = []; };
  events.onerror = () => {
    by('status').textContent = events.readyState === EventSource.CLOSED ? 'no connection: are too many of these pages open?' : 'connection lost, trying again';
    by('status').dataset.state = 'lost';
  };
}
