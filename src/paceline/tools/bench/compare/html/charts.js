"use strict";
// Charts as SVG: lines with bands, and rows of dots, bars or shares. They know nothing of the page.

const DASHES = [null, "7 4", "1.5 4", "9 4 1.5 4"];

function drawing(width, height, label, ...children) {
  const box = { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label };
  return svg("svg", box, ...children);
}

/** An element in its group's colour, which the style sheet adapts to the background. */
function tinted(made, group) {
  made.classList.add("tinted");
  if (/^#[0-9a-f]{6}$/i.test(group.colour)) made.style.setProperty("--c", group.colour);
  made.dataset.group = group.key;
  return made;
}

function swatch(group) {
  const look = { x1: 2, x2: 24, y1: 5, y2: 5, class: "line", "stroke-dasharray": DASHES[group.dash] };
  const box = { viewBox: "0 0 26 10", class: "swatch", "aria-hidden": "true" };
  return tinted(svg("svg", box, svg("line", look)), group);
}

/** The ends of all values; intervals widen them, by no more than `extra` times the whole. */
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

/** Vertical lines with their texts below the plot. */
function across({ at, texts }, x, top, bottom) {
  return at.map((value, place) => [
    svg("line", { x1: x(value), x2: x(value), y1: top, y2: bottom, class: "gridline" }),
    svg("text", { x: x(value), y: bottom + 17, class: "tick x" }, texts[place]),
  ]);
}

/** Horizontal lines with their texts to the left. */
function upwards({ at, texts }, y, left, right) {
  return at.map((value, place) => [
    svg("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: "gridline" }),
    svg("text", { x: left - 8, y: y(value) + 4, class: "tick y" }, texts[place]),
  ]);
}

/** Places of a line in a row where all columns are known. */
function stretches(line, ...columns) {
  const found = [[]];
  line.x.forEach((x, place) => {
    if (known(x) && columns.every((column) => known(column?.[place]))) found.at(-1).push(place);
    else if (found.at(-1).length) found.push([]);
  });
  return found.filter((stretch) => stretch.length);
}

/** Lines with bands. A chart has series {x, y, low, high, group}, a target, and the form of its axis. */
function lineChart(width, chart) {
  const height = Math.round(Math.min(400, Math.max(250, width * 0.6)));
  const all = (name) => chart.series.flatMap((line) => (line[name] ?? []).filter(known));
  const target = known(chart.target) ? [chart.target] : [];
  const yDomain = reach([...all("y"), ...target], [...all("low"), ...all("high")], 0.25);
  const [top, bottom, right] = [10, height - 42, width - 22];
  const yAxis = axis(yDomain, bottom - top, { upright: true });
  const left = Math.ceil(widest(yAxis.texts)) + 10;
  const xDomain = [Math.min(0, ...all("x")), Math.max(...all("x")) || 1];
  const [x, y] = [scale(xDomain, [left, right]), scale(yDomain, [bottom, top])];
  const path = (line, places, column) =>
    places.map((place) => `${x(line.x[place]).toFixed(1)},${y(column[place]).toFixed(1)}`).join("L");
  const bands = chart.series.map((line) => stretches(line, line.low, line.high).map((places) => {
    const back = path(line, places.toReversed(), line.low);
    const d = `M${path(line, places, line.high)}L${back}Z`;
    return tinted(svg("path", { d, class: "band" }), line.group);
  }));
  const lines = chart.series.map((line) => stretches(line, line.y).map((places) => {
    const d = `M${path(line, places, line.y)}${places.length > 1 ? "" : "h0"}`;
    const look = { d, class: "line", "stroke-dasharray": DASHES[line.group.dash] };
    return tinted(svg("path", look), line.group);
  }));
  const goal = target.map((value) => [
    svg("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: "reference" }),
    svg("text", { x: left + 6, y: y(value) + (y(value) < top + 18 ? 15 : -6), class: "mark start" },
      `target ${number(value)}`),
  ]);
  const plot = { x: left, y: top - 2, width: right - left + 2, height: bottom - top + 4 };
  const drawn = drawing(width, height, chart.label,
    svg("clipPath", { id: `clip-${chart.id}` }, svg("rect", plot)),
    upwards(yAxis, y, left, right),
    across(axis(xDomain, right - left, chart), x, top, bottom),
    svg("g", { "clip-path": `url(#clip-${chart.id})`, class: crowd(lines.length) },
      bands.flat(), lines.flat()),
    goal,
    svg("text", { x: (left + right) / 2, y: height - 6, class: "name" }, chart.xName));
  return { drawn, plot: { left, right, top, bottom, xDomain, y } };
}

/** Many lines are thin, and of a crowd bands are seen only while a group is pointed at. */
function crowd(count) {
  return count > 16 ? "many crowd" : count > 6 ? "many" : null;
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
 * Rows of marks, with their names beside them or, where it is narrow, above them.
 *
 * A chart has a kind (dot, bar, share), rows {group, name, value, low, high, text: [main, rest]} or,
 * of shares, {parts}, references {value, text}, and the form of its axis.
 */
function rowChart(width, chart) {
  const { rows, kind, references = [] } = chart;
  const nameRoom = widest(rows.map((row) => row.name));
  const textRoom = widest(rows.map((row) => row.text[0]), 600) + widest(rows.map((row) => row.text[1] ?? "")) + 6;
  const wide = nameRoom + textRoom + Math.max(200, width * 0.36) <= width;
  const edge = kind === "dot" ? 14 : 4;
  const [left, right] = wide ? [nameRoom + 14, width - textRoom - 18] : [edge, width - 20];
  const each = (wide ? 22 : 40) + (rows.length > 16 ? 0 : 4);
  const top = references.some((one) => one.text) ? 24 : 6;
  const bottom = top + rows.length * each + 4;
  const domain = chart.domain ?? rowDomain(rows, kind, references);
  const x = scale(domain, [left, right]);
  const marks = rows.map((row, place) => {
    const middle = top + place * each + (wide ? each / 2 : each - 11);
    const line = wide ? middle + 4 : middle - 13;
    const name = fit(row.name, wide ? nameRoom + 1 : width - textRoom - 12);
    const drawn = svg("g", { class: row.faint ? "faint" : null },
      svg("title", null, row.title ?? row.name),
      wide ? null : svg("rect", { x: 0, y: line - 13, width, height: 18, class: "under" }),
      kind === "share" ? shares(row.parts, x, middle) : mark(row, kind, x, domain, middle),
      svg("text", { x: wide ? left - 12 : 0, y: line, class: wide ? "row end" : "row" }, name),
      svg("text", { x: width - 1, y: line, class: "row end" },
        svg("tspan", { class: "value" }, row.text[0]),
        row.text[1] ? svg("tspan", { class: "rest", dx: 6 }, row.text[1]) : null));
    tinted(drawn, row.group);
    if (row.also !== undefined) drawn.dataset.group += ` ${row.also}`;
    return drawn;
  });
  const drawn = drawing(width, bottom + 24, chart.label,
    across(axis(domain, right - left, chart), x, top, bottom),
    references.map((one) => reference(one, x(one.value), top, bottom, width)),
    marks);
  return { drawn };
}

/** A line across all rows; its text above it, within the chart. */
function reference({ text }, x, top, bottom, width) {
  const line = { x1: x, x2: x, y1: top - (text ? 4 : 0), y2: bottom, class: text ? "reference" : "zero" };
  if (!text) return [svg("line", line)];
  const half = measure(text) / 2 + 2;
  const at = Math.min(width - half, Math.max(half, x));
  return [svg("line", line), svg("text", { x: at, y: 14, class: "mark" }, text)];
}

function rowDomain(rows, kind, references) {
  const values = [...rows, ...references].map((one) => one.value).filter(known);
  const edges = rows.flatMap((row) => [row.low, row.high]).filter(known);
  if (kind === "bar") return [0, reach([0, ...values], edges, 0.6)[1]];
  return reach(values, edges, 1);
}

/** A dot or a bar with its interval; one that goes on beyond the plot has no cap there. */
function mark(row, kind, x, domain, middle) {
  if (!known(row.value)) return [];
  const ends = [row.low, row.high].filter(known);
  const inside = ends.map((end) => Math.min(domain[1], Math.max(domain[0], end)));
  const caps = ends.filter((end, place) => end === inside[place]).map((end) => `M${x(end)},${middle - 4}v8`);
  const d = `M${x(inside[0])},${middle}H${x(inside[1])}${caps.join("")}`;
  const whisker = ends.length === 2 ? svg("path", { d, class: "whisker" }) : null;
  const length = Math.max(0, x(row.value) - x(0));
  return kind === "bar"
    ? [svg("rect", { x: x(0), y: middle - 6, width: length, height: 12, class: "bar" }), whisker]
    : [whisker, svg("circle", { cx: x(row.value), cy: middle, r: 4.5, class: "dot" })];
}

/** Parts of a bar, each with its share in it where that fits. */
function shares(parts, x, middle) {
  let done = 0;
  return Object.entries(parts).filter(([, share]) => share > 0).map(([phase, share]) => {
    const [from, to] = [x(done), x((done += share))];
    const fits = to - from > measure(percent(share)) + 6;
    return [
      svg("rect", { x: from, y: middle - 8, width: to - from, height: 16, class: `part ${phase}` }),
      fits ? svg("text", { x: (from + to) / 2, y: middle + 4, class: "share" }, percent(share)) : null,
    ];
  });
}
