/** Line charts as SVG, and pages of them that need nothing else: no script, no font, no network. */

/** An axis. */
export interface Axis {
  /** What it shows, with its unit. */
  label: string;
  /** Powers of this instead of equal steps; values must then be above 0. */
  log?: 2 | 10;
}

/** A line. */
export interface Series {
  /** For the legend. */
  name: string;
  /** Its points, in the order of x. One that is no finite number leaves a gap. */
  points: readonly (readonly [x: number, y: number])[];
}

/** A chart. */
export interface Chart {
  /** Above it. */
  title: string;
  /** Below it: where the values are from. */
  note?: string;
  /** To the right. */
  x: Axis;
  /** Upwards; without `log` it starts at 0. */
  y: Axis;
  /** At most eight can be told apart. */
  series: readonly Series[];
}

const WIDTH = 760;
const HEIGHT = 440;
const plot = { left: 76, right: 740, top: 44, bottom: 330 };
// Okabe and Ito: colours that the colour-blind tell apart.
const colours = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#000000', '#8a8a00'];

const escaped = (text: string) =>
  text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;').replace(/"/g, '&quot;');

interface Scale {
  ticks: number[];
  /** From 0 to 1. */
  place(value: number): number;
}

function scaleOf(values: readonly number[], axis: Axis, startsAtZero: boolean): Scale {
  const shown = values.filter((value) => Number.isFinite(value) && (axis.log === undefined || value > 0));
  let low = startsAtZero && axis.log === undefined ? 0 : Math.min(...shown);
  let high = Math.max(...shown);
  if (shown.length === 0) [low, high] = [1, 2];
  if (axis.log !== undefined) {
    const log = (value: number) => Math.log(value) / Math.log(axis.log!);
    let [first, last] = [Math.floor(log(low) + 1e-9), Math.ceil(log(high) - 1e-9)];
    if (first === last) last++;
    // Not more than twelve labels.
    const step = Math.ceil((last - first + 1) / 12);
    const ticks: number[] = [];
    for (let power = first; power <= last; power += step) ticks.push(axis.log ** power);
    return { ticks, place: (value) => (log(value) - first) / (last - first) };
  }
  if (low === high) [low, high] = [Math.min(0, low), high === 0 ? 1 : high];
  const rough = (high - low) / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10);
  const [first, last] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  const ticks = Array.from({ length: Math.round((last - first) / step) + 1 }, (_, i) => first + i * step);
  return { ticks, place: (value) => (value - first) / (last - first) };
}

/** `1 Ki`, `250k`, `1e-5`: short enough for an axis. */
function tickText(value: number, log: Axis['log']): string {
  if (log === 2) {
    const unit = [
      [2 ** 30, 'Gi'],
      [2 ** 20, 'Mi'],
      [2 ** 10, 'Ki'],
    ].find(([size]) => value >= (size as number));
    return unit === undefined ? String(value) : `${value / (unit[0] as number)} ${unit[1]}`;
  }
  // Powers of ten are not exact.
  const rounded = Number(value.toPrecision(6));
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6))
    return rounded.toExponential().replace('e+', 'e');
  return String(rounded);
}

/**
 * Draws a chart.
 *
 * @param chart - what to draw
 * @returns an `<svg>` element, which is a file too
 */
export function drawChart(chart: Chart): string {
  const { title, note, x, y, series } = chart;
  const points = series.flatMap((line) => line.points);
  const horizontal = scaleOf(
    points.map(([value]) => value),
    x,
    false,
  );
  const vertical = scaleOf(
    points.map(([, value]) => value),
    y,
    true,
  );
  const atX = (value: number) => plot.left + horizontal.place(value) * (plot.right - plot.left);
  const atY = (value: number) => plot.bottom - vertical.place(value) * (plot.bottom - plot.top);
  const isShown = ([a, b]: readonly [number, number]) =>
    Number.isFinite(a) && Number.isFinite(b) && (x.log === undefined || a > 0) && (y.log === undefined || b > 0);
  const place = ([a, b]: readonly [number, number]) => `${atX(a).toFixed(1)},${atY(b).toFixed(1)}`;

  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${escaped(title)}" font-family="system-ui, sans-serif" font-size="12">`,
    `<rect width="${WIDTH}" height="${HEIGHT}" fill="#fff"/>`,
    `<text x="${WIDTH / 2}" y="22" text-anchor="middle" font-size="15" font-weight="600">${escaped(title)}</text>`,
  ];
  for (const tick of vertical.ticks) {
    const at = atY(tick).toFixed(1);
    parts.push(`<line x1="${plot.left}" x2="${plot.right}" y1="${at}" y2="${at}" stroke="#ddd"/>`);
    parts.push(`<text x="${plot.left - 8}" y="${Number(at) + 4}" text-anchor="end">${tickText(tick, y.log)}</text>`);
  }
  for (const tick of horizontal.ticks) {
    const at = atX(tick).toFixed(1);
    parts.push(`<line x1="${at}" x2="${at}" y1="${plot.top}" y2="${plot.bottom}" stroke="#eee"/>`);
    parts.push(`<text x="${at}" y="${plot.bottom + 18}" text-anchor="middle">${tickText(tick, x.log)}</text>`);
  }
  parts.push(
    `<text x="${(plot.left + plot.right) / 2}" y="${plot.bottom + 38}" text-anchor="middle">${escaped(x.label)}</text>`,
    `<text transform="translate(18 ${(plot.top + plot.bottom) / 2}) rotate(-90)" text-anchor="middle">${escaped(y.label)}</text>`,
  );
  for (const [i, line] of series.entries()) {
    const colour = colours[i % colours.length]!;
    for (const piece of pieces(line.points, isShown)) {
      parts.push(
        `<polyline fill="none" stroke="${colour}" stroke-width="2" points="${piece.map(place).join(' ')}"><title>${escaped(line.name)}</title></polyline>`,
      );
      // So many that they would hide the line are left out.
      if (line.points.length > 60) continue;
      for (const point of piece) {
        const [cx, cy] = place(point).split(',');
        parts.push(
          `<circle cx="${cx}" cy="${cy}" r="3" fill="${colour}"><title>${escaped(line.name)}: ${tickText(point[0], x.log)}, ${Number(point[1].toPrecision(6))}</title></circle>`,
        );
      }
    }
    const [column, row] = [i % 3, Math.floor(i / 3)];
    const [left, top] = [plot.left + column * 226, plot.bottom + 56 + row * 16];
    parts.push(
      `<line x1="${left}" x2="${left + 18}" y1="${top - 4}" y2="${top - 4}" stroke="${colour}" stroke-width="3"/>`,
      `<text x="${left + 24}" y="${top}">${escaped(line.name)}</text>`,
    );
  }
  if (note !== undefined) {
    parts.push(
      `<text x="${WIDTH - 8}" y="${HEIGHT - 6}" text-anchor="end" fill="#666" font-size="11">${escaped(note)}</text>`,
    );
  }
  return `${parts.join('\n')}\n</svg>\n`;
}

function pieces<P>(points: readonly P[], isShown: (point: P) => boolean): P[][] {
  const found: P[][] = [[]];
  for (const point of points) {
    if (isShown(point)) found.at(-1)!.push(point);
    else if (found.at(-1)!.length > 0) found.push([]);
  }
  return found.filter((piece) => piece.length > 0);
}

/** A part of a page. */
export type Section =
  | { /** A chart. */ chart: Chart }
  | { /** A table. */ columns: readonly string[] /** Its rows. */; rows: readonly (readonly (string | number)[])[] }
  | { /** A paragraph. */ text: string };

/**
 * Makes a page of charts and tables that stands alone.
 *
 * @param title - of the page
 * @param sections - in order
 * @returns HTML
 */
export function drawPage(title: string, sections: readonly Section[]): string {
  const body = sections.map((section) => {
    if ('chart' in section) return `<figure>${drawChart(section.chart)}</figure>`;
    if ('text' in section) return `<p>${escaped(section.text)}</p>`;
    const row = (cells: readonly (string | number)[], tag: string) =>
      `<tr>${cells.map((cell) => `<${tag}>${escaped(String(cell))}</${tag}>`).join('')}</tr>`;
    return `<div><table>\n${row(section.columns, 'th')}\n${section.rows.map((cells) => row(cells, 'td')).join('\n')}\n</table></div>`;
  });
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(title)}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff; }
figure { margin: 1.5rem 0; }
figure svg { width: 100%; height: auto; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .5rem; border-bottom: 1px solid #ddd; text-align: right; }
th { font-size: 12px; }
th:first-child, td:first-child { text-align: left; }
</style>
</head>
<body>
<h1>${escaped(title)}</h1>
${body.join('\n')}
</body>
</html>
`;
}
