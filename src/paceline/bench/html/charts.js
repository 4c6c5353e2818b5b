"use strict";
// Charts as SVG: lines with bands, and rows of dots, bars or shares. They know nothing of the page.

const DASHES = [null, "7 4", "1.5 4", "9 4 1.5 4"];
const FONT = 12; // CSS pixels: a chart is drawn for the width that it has, and is never scaled
const pen = document.createElement("canvas").getContext("2d");

const known = (value) => typeof value === "number";
const svg = maker("http://www.w3.org/2000/svg");
const html = maker("http://www.w3.org/1999/xhtml");

/** A function that makes elements of a namespace; what is in them is text, never markup. */
function maker(namespace) {
  return (name, attributes, ...children) => {
    const made = document.createElementNS(namespace, name);
    for (const [key, value] of Object.entries(attributes ?? {})) {
      if (typeof value === "function") made.addEventListener(key, value);
      else if (value !== null && value !== undefined) made.setAttribute(key, value);
    }
    made.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return made;
  };
}

/** The width of a text in pixels. */
function measure(text, weight = 400) {
  pen.font = `${weight} ${FONT}px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(text).width;
}

/** As much of a text as there is room for. */
function fit(text, room) {
  if (measure(text) <= room) return text;
  let end = text.length;
  while (end > 1 && measure(text.slice(0, end) + "…") > room) end -= 1;
  return text.slice(0, end).trimEnd() + "…";
}

/** Three digits: 0.0123, 1.23, 12.3, 123, 1,234, 12.3k, 1.23M. */
function number(value) {
  if (!known(value)) return "–";
  const size = Number(Math.abs(value).toPrecision(3));
  if (size === 0) return "0";
  const [unit, letter] = size < 1e4 ? [1, ""] : unitOf(size);
  const scaled = Math.abs(value) / unit;
  const digits = Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(size / unit))));
  const text = scaled.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return (value < 0 ? "−" : "") + text + letter;
}

function unitOf(size) {
  return size >= 1e9 ? [1e9, "B"] : size >= 1e6 ? [1e6, "M"] : size >= 1e4 ? [1e3, "k"] : [1, ""];
}

/** The unit in which times as long as this are told. */
function timeUnit(seconds) {
  return seconds < 180 ? [1, "s"] : seconds < 10800 ? [60, "min"] : [3600, "h"];
}

function duration(seconds) {
  if (!known(seconds)) return "–";
  const [unit, name] = timeUnit(seconds);
  return `${number(seconds / unit)}\u00a0${name}`;
}

/** Round numbers between two ends, at most about so many. */
function ticks([low, high], most) {
  const rough = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((nice) => nice * power >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, place) => (first + place) * step);
}

function tickTexts(values, suffix) {
  const most = Math.max(...values.map(Math.abs));
  const [unit, letter] = unitOf(most);
  const step = (values.length > 1 ? values[1] - values[0] : most || 1) / unit;
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const form = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return values.map((value) => {
    const text = Math.abs(value / unit).toLocaleString("en-US", form);
    return value === 0 ? "0" : (value < 0 ? "−" : "") + text + letter + suffix;
  });
}

/** As many ticks as fit beside each other: their places, in the domain's unit, and texts. */
function axis(domain, room, { unit = 1, suffix = "" } = {}) {
  const scaled = domain.map((end) => end / unit);
  for (let most = Math.ceil(room / 55); ; most -= 1) {
    const values = ticks(scaled, most);
    const texts = tickTexts(values, suffix);
    const widest = Math.max(0, ...texts.map((text) => measure(text)));
    const gap = (room * (values[1] - values[0])) / (scaled[1] - scaled[0]);
    if (most <= 1 || values.length < 2 || gap > widest + 12) return { at: values.map((value) => value * unit), texts };
  }
}

/** The ends of all values; intervals widen them, but by no more than `extra` times the whole. */
function reach(values, edges, extra) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const span = high - low || Math.abs(high) || 1;
  const bottom = Math.max(low - extra * span, Math.min(low, ...edges));
  const top = Math.min(high + extra * span, Math.max(high, ...edges));
  const pad = (top - bottom || span) * 0.04;
  return [bottom - pad, top + pad];
}

function scale([low, high], [from, to]) {
  return (value) => from + ((value - low) / (high - low)) * (to - from);
}

function canvas(width, height, label, ...children) {
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...children);
}

/** A group's colour, which style sheets adapt to the background, and its number for highlights. */
function tinted(made, group) {
  made.classList.add("tinted");
  if (/^#[0-9a-f]{6}$/i.test(group.colour)) made.style.setProperty("--c", group.colour);
  made.dataset.group = group.key;
  return made;
}

function swatch(group) {
  const line = { x1: 2, x2: 24, y1: 5, y2: 5, "stroke-dasharray": DASHES[group.dash], class: "line" };
  return tinted(svg("svg", { viewBox: "0 0 26 10", class: "swatch", "aria-hidden": "true" }, svg("line", line)), group);
}

/** Vertical lines with their numbers below the plot. */
function acrossAxis({ at, texts }, x, top, bottom) {
  return at.map((value, place) => [
    svg("line", { x1: x(value), x2: x(value), y1: top, y2: bottom, class: "gridline" }),
    svg("text", { x: x(value), y: bottom + 17, class: "tick x" }, texts[place]),
  ]).flat();
}

/** Stretches of a line without unknown values. */
function stretches(line, ...columns) {
  const found = [[]];
  line.x.forEach((x, place) => {
    if (known(x) && columns.every((column) => known(column?.[place]))) found.at(-1).push(place);
    else if (found.at(-1).length) found.push([]);
  });
  return found.filter((stretch) => stretch.length);
}

/** Lines with bands; `chart` has series {x, y, low, high, group}, a target, and its axis' form. */
function lineChart(width, chart) {
  const [height, top, bottom] = [Math.round(Math.min(400, Math.max(250, width * 0.6))), 10, 42];
  const all = (name) => chart.series.flatMap((line) => (line[name] ?? []).filter(known));
  const target = known(chart.target) ? [chart.target] : [];
  const yDomain = reach([...all("y"), ...target], [...all("low"), ...all("high")], 0.25);
  const yAxis = axis(yDomain, (height - top - bottom) * 1.1);
  const left = Math.ceil(Math.max(...yAxis.texts.map((text) => measure(text)))) + 10;
  const right = 22;
  const xDomain = [Math.min(0, ...all("x")), Math.max(...all("x")) || 1];
  const x = scale(xDomain, [left, width - right]);
  const y = scale(yDomain, [height - bottom, top]);
  const clip = `clip-${chart.id}`;
  const path = (line, places, column) => "M" + places.map((place) => `${x(line.x[place]).toFixed(1)},${y(column[place]).toFixed(1)}`).join("L");
  const bands = chart.series.map((line) => stretches(line, line.low, line.high).map((places) => {
    const back = path(line, [...places].reverse(), line.low).slice(1);
    return tinted(svg("path", { d: `${path(line, places, line.high)}L${back}Z`, class: "band" }), line.group);
  }));
  const lines = chart.series.map((line) => stretches(line, line.y).map((places) => {
    const d = path(line, places, line.y) + (places.length > 1 ? "" : "h0");
    return tinted(svg("path", { d, class: "line", "stroke-dasharray": DASHES[line.group.dash] }), line.group);
  }));
  const across = yAxis.at.map((value, place) => [
    svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "gridline" }),
    svg("text", { x: left - 8, y: y(value) + 4, class: "tick y" }, yAxis.texts[place]),
  ]);
  const goal = target.map((value) => [
    svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "reference" }),
    svg("text", { x: width - right - 2, y: y(value) + (y(value) < top + 18 ? 15 : -5), class: "mark end" }, `target ${number(value)}`),
  ]);
  const drawn = canvas(width, height, chart.label,
    svg("clipPath", { id: clip }, svg("rect", { x: left, y: top - 2, width: width - left - right + 2, height: height - top - bottom + 4 })),
    across.flat(), acrossAxis(axis(xDomain, width - left - right, chart), x, top, height - bottom),
    svg("g", { "clip-path": `url(#${clip})`, class: chart.series.length > 6 ? "many" : null }, bands.flat(), lines.flat()),
    goal.flat(), svg("text", { x: (left + width - right) / 2, y: height - 6, class: "name" }, chart.xName));
  return { drawn, plot: { left, right: width - right, top, bottom: height - bottom, xDomain, x, y } };
}

/** Between two known points, on the straight line that joins them. */
function valueAt(line, x) {
  const after = line.x.findIndex((one) => one >= x);
  if (after < 0) return null;
  if (line.x[after] === x) return line.y[after];
  if (after === 0 || !known(line.y[after - 1]) || !known(line.y[after])) return null;
  const share = (x - line.x[after - 1]) / (line.x[after] - line.x[after - 1]);
  return line.y[after - 1] + share * (line.y[after] - line.y[after - 1]);
}

/**
 * Rows of marks: `kind` is dot, bar or share; a row has its group, name, value, low, high and text
 * [what counts, the rest], or parts {kind: share}. Names stand beside the marks or, where it is narrow, above.
 */
function rowChart(width, chart) {
  const { rows, kind } = chart;
  const nameRoom = Math.max(...rows.map((row) => measure(row.name)));
  const textRoom = Math.max(...rows.map((row) => measure(row.text[0], 600) + measure(row.text[1] ?? "") + 6));
  const wide = nameRoom + textRoom + Math.max(180, width * 0.35) <= width;
  const [left, right] = wide ? [nameRoom + 14, textRoom + 16] : [16, 22];
  const each = (wide ? 22 : 40) + (rows.length > 16 ? 0 : 4);
  const references = (chart.references ?? []).filter((one) => known(one.value));
  const top = references.some((one) => one.text) ? 22 : 6;
  const bottom = top + rows.length * each;
  const domain = chart.domain ?? rowDomain(rows, kind, references);
  const x = scale(domain, [left, width - right]);
  const marks = rows.map((row, place) => {
    const middle = top + place * each + (wide ? each / 2 : each - 11);
    const line = wide ? middle + 4 : middle - 12;
    const room = wide ? width : width - textRoom - 14;
    const name = svg("text", { x: wide ? left - 12 : 0, y: line, class: wide ? "row end" : "row" }, fit(row.name, room));
    const text = svg("text", { x: width - 1, y: line, class: "row end" }, svg("tspan", { class: "value" }, row.text[0]),
      row.text[1] ? svg("tspan", { class: "rest", dx: 6 }, row.text[1]) : null);
    const drawn = kind === "share" ? shares(row.parts, x, middle) : mark(row, kind, x, domain, middle);
    const made = tinted(svg("g", { class: row.faint ? "faint" : null }, svg("title", null, row.title ?? row.name), drawn, name, text), row.group);
    if (row.also !== undefined) made.dataset.group += ` ${row.also}`;
    return made;
  });
  const lines = references.map((one) => [
    svg("line", { x1: x(one.value), x2: x(one.value), y1: top, y2: bottom, class: one.text ? "reference" : "zero" }),
    one.text ? svg("text", { y: 14, ...beside(one.text, x(one.value), width) }, one.text) : null,
  ]);
  const drawn = canvas(width, bottom + 24, chart.label, acrossAxis(axis(domain, width - left - right, chart), x, top, bottom), lines.flat(), marks);
  return { drawn };
}

/** A centred text, moved to where it is within the chart. */
function beside(text, x, width) {
  const half = measure(text) / 2 + 2;
  return { x: Math.min(width - half, Math.max(half, x)), class: "mark" };
}

function rowDomain(rows, kind, references) {
  const values = rows.map((row) => row.value).filter(known);
  const edges = rows.flatMap((row) => [row.low, row.high]).filter(known);
  const fixed = references.map((one) => one.value);
  if (kind !== "bar") return reach([...values, ...fixed].length ? [...values, ...fixed] : [0, 1], edges, 1);
  return [0, reach([0, ...values, ...fixed], edges, 0.6)[1] || 1];
}

/** A dot or a bar with its interval; an interval that goes on beyond the plot has no cap. */
function mark(row, kind, x, domain, middle) {
  const line = svg("line", { x1: x(domain[0]), x2: x(domain[1]), y1: middle, y2: middle, class: "track" });
  if (!known(row.value)) return [line];
  const ends = [row.low, row.high];
  const whisker = ends.every(known) ? svg("path", { class: "whisker", d: [
    `M${x(Math.max(ends[0], domain[0]))},${middle}H${x(Math.min(ends[1], domain[1]))}`,
    ...ends.filter((end) => end >= domain[0] && end <= domain[1]).map((end) => `M${x(end)},${middle - 4}v8`),
  ].join("") }) : null;
  if (kind === "bar") return [svg("rect", { x: x(0), y: middle - 6, width: Math.max(0, x(row.value) - x(0)), height: 12, class: "bar" }), whisker];
  return [line, whisker, svg("circle", { cx: x(row.value), cy: middle, r: 4.5, class: "dot" })];
}

function shares(parts, x, middle) {
  let done = 0;
  return Object.entries(parts).filter(([, share]) => share > 0).flatMap(([phase, share]) => {
    const [from, to] = [x(done), x((done += share))];
    const text = `${Math.round(100 * share)} %`;
    const fits = to - from > measure(text) + 6;
    return [
      svg("rect", { x: from, y: middle - 8, width: to - from, height: 16, class: `part ${phase}` }),
      fits ? svg("text", { x: (from + to) / 2, y: middle + 4, class: "share" }, text) : null,
    ];
  });
}
