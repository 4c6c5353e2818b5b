"use strict";
// The page: which groups are shown, the figures that show them, the tables.

const content = JSON.parse(document.getElementById("content").textContent);
const groups = content.groups.map((group, key) => ({ ...group, key, shown: true }));
const figures = [];
const MOST_PAIRS = 10; // more than these, and only those of the best group are drawn
const MOST_IN_TIP = 16;
const PHASES = {
  rollout: "sampling", wait: "waiting for workers", learn: "learning",
  sync: "exchange between ranks", other: "everything else",
};

const spread = (name) => (group) => group[name]?.value;
const interval = (one, form = number) => known(one?.low) && known(one?.high) ? `${form(one.low)} to ${form(one.high)}` : "";
const shown = () => groups.filter((group) => group.shown);
const any = (find) => groups.some((group) => known(find(group)));
const least = (find) => (a, b) => (find(a) ?? Infinity) - (find(b) ?? Infinity) || a.key - b.key;
const most = (find) => (a, b) => (find(b) ?? -Infinity) - (find(a) ?? -Infinity) || a.key - b.key;

/** A figure in a section; `draw(width)` gives its drawing, or nothing where there is nothing to see. */
function figure(section, title, note, draw, extra) {
  const place = html("div", { class: "plot" });
  document.querySelector(`#${section} .grid`).append(
    html("figure", null, html("figcaption", null, html("h3", null, title), html("p", null, note)), place, extra));
  document.getElementById(section).hidden = false;
  figures.push({ place, draw });
}

function redraw() {
  for (const { place, draw } of figures) {
    const found = shown().length ? draw(Math.max(280, place.clientWidth)) : null;
    place.replaceChildren(found?.drawn ?? html("p", { class: "empty" }, shown().length ? "Nothing known." : "No group is shown."));
    if (found?.plot) follow(place, found);
  }
}

// Learning curves.

function curves(name, title, xName) {
  const curve = (group) => ({ x: [], y: [], ...group.curves?.[name], group });
  if (!groups.some((group) => curve(group).y.some(known))) return;
  const target = content.target?.value;
  figure("learning", title, "Return; bands are 95 % intervals.", (width) => {
    const series = shown().map(curve).filter((line) => line.y.some(known));
    if (!series.length) return null;
    const end = Math.max(...series.flatMap((line) => line.x.filter(known)));
    const [unit, unitName] = name === "time" ? timeUnit(end) : [1, ""];
    const finals = series.map((line) => `${line.group.name} ends at ${number(line.y.findLast(known))}`);
    const label = `${title}. ${finals.join("; ")}.`;
    const chart = { id: name, series, target, unit, xName: unitName ? `${xName}, ${unitName}` : xName, label };
    return { ...lineChart(width, chart), series, form: name === "time" ? duration : (x) => `${number(x)} steps` };
  });
}

/** A line that follows pointer or arrow keys, and beside it all values there, greatest first. */
function follow(place, { drawn, plot, series, form }) {
  const line = svg("line", { y1: plot.top, y2: plot.bottom, class: "crosshair", visibility: "hidden" });
  const dots = svg("g");
  const tip = html("div", { class: "tip", role: "status", hidden: "" });
  let at = plot.right;
  const hide = () => { line.setAttribute("visibility", "hidden"); dots.replaceChildren(); tip.hidden = true; };
  const show = (pixel) => {
    at = Math.min(plot.right, Math.max(plot.left, pixel));
    const share = (at - plot.left) / (plot.right - plot.left);
    const x = plot.xDomain[0] + share * (plot.xDomain[1] - plot.xDomain[0]);
    const found = series.map((one) => ({ group: one.group, value: valueAt(one, x) })).filter((one) => known(one.value));
    found.sort((a, b) => b.value - a.value);
    for (const end of ["x1", "x2"]) line.setAttribute(end, at);
    line.setAttribute("visibility", "visible");
    dots.replaceChildren(...found.map((one) => tinted(svg("circle", { cx: at, cy: plot.y(one.value), r: 3, class: "dot" }), one.group)));
    const rows = found.slice(0, MOST_IN_TIP).map((one) =>
      html("li", null, swatch(one.group), html("span", null, one.group.name), html("b", null, number(one.value))));
    const left = found.length - rows.length;
    tip.replaceChildren(html("p", null, form(x)), html("ul", null, rows), left > 0 ? html("p", null, `and ${left} lower`) : "");
    tip.hidden = false;
    const room = place.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(room, share > 0.5 ? at - tip.offsetWidth - 14 : at + 14))}px`;
    tip.style.top = `${place.clientWidth < 480 ? plot.bottom + 24 : plot.top}px`;
  };
  const pixel = (event) => event.clientX - drawn.getBoundingClientRect().left;
  drawn.append(line, dots);
  drawn.classList.add("followed");
  drawn.setAttribute("tabindex", "0");
  drawn.addEventListener("pointermove", (event) => show(pixel(event)));
  drawn.addEventListener("pointerdown", (event) => show(pixel(event)));
  drawn.addEventListener("pointerleave", hide);
  drawn.addEventListener("blur", hide);
  drawn.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") hide();
    if (!step) return;
    event.preventDefault();
    show(at + (step * (plot.right - plot.left)) / 40);
  });
  place.append(tip);
}

// Rows of groups.

/** Groups in an order, each with a value, its interval and a text. */
function rowsOf(section, title, note, find, options) {
  const { order = most(spread(find)), form = number, text = (group) => [form(group[find]?.value), interval(group[find], form)] } = options;
  figure(section, title, note, (width) => {
    const rows = shown().sort(order).map((group) => ({
      group, name: group.name, ...group[find], text: text(group), faint: !known(group[find]?.value),
    }));
    return rowChart(width, { kind: "dot", ...options.chart?.(rows), rows, label: labelOf(title, rows) });
  });
}

function labelOf(title, rows) {
  return `${title}. ${rows.map((row) => `${row.name}: ${row.text.filter(Boolean).join(", ")}`).join("; ")}.`;
}

function toTarget(find, title, form, unit) {
  const value = number(content.target.value);
  const text = (group) => {
    const part = `${group.reached ?? 0} of ${group.count}`;
    return known(group[find]?.value) ? [form(group[find].value), part] : [group.reached ? "too few" : "not reached", part];
  };
  const chart = (rows) => unit(Math.max(0, ...rows.map((row) => row.value ?? 0)));
  const note = `Until a return of ${value}, ${content.target.source}; how many of the runs got there.`;
  rowsOf("outcome", title, note, find, { order: least(spread(find)), form, text, chart: (rows) => ({ kind: "bar", ...chart(rows) }) });
}

function phases() {
  const found = (group) => Object.fromEntries(Object.keys(PHASES).map((name) => [name, group.phases?.[name] ?? 0]));
  const used = Object.keys(PHASES).filter((name) => groups.some((group) => found(group)[name] >= 0.005));
  const key = html("ul", { class: "key" }, used.map((name) => html("li", null, html("i", { class: `part ${name}` }), PHASES[name])));
  figure("speed", "Where the time goes", "Shares of an iteration.", (width) => {
    const rows = shown().filter((group) => group.phases).sort(most(spread("fps"))).map((group) => ({
      group, name: group.name, parts: found(group), text: [""],
      title: `${group.name}: ${used.map((name) => `${PHASES[name]} ${Math.round(100 * found(group)[name])} %`).join(", ")}`,
    }));
    if (!rows.length) return null;
    const label = `Where the time goes. ${rows.map((row) => row.title).join("; ")}.`;
    return rowChart(width, { kind: "share", rows, domain: [0, 1], unit: 0.01, suffix: " %", label });
  }, key);
}

// Pairs of groups.

const minus = (value) => (known(value) ? -value : null);

/** A pair with one of the two first; differences are those of the first over the second. */
function turned(pair, first) {
  const chance = pair.improvement ?? {};
  const same = first === pair.b;
  const but = (value) => (known(value) ? 1 - value : null);
  return {
    first: groups[first], second: groups[same ? pair.a : pair.b], says: pair.says,
    difference: same ? { value: pair.difference, low: pair.low, high: pair.high }
      : { value: minus(pair.difference), low: minus(pair.high), high: minus(pair.low) },
    chance: same ? chance : { value: but(chance.value), low: but(chance.high), high: but(chance.low) },
  };
}

/** The better one first; of many pairs, those of the best group that is shown. */
function pairs() {
  const found = content.pairs.filter((pair) => known(pair.difference) && groups[pair.a].shown && groups[pair.b].shown);
  const best = shown().sort(most(spread("score")))[0]?.key;
  const its = found.filter((pair) => pair.a === best || pair.b === best);
  const few = found.length <= MOST_PAIRS || !its.length;
  const all = few ? found.slice(0, 40).map((pair) => turned(pair, pair.difference < 0 ? pair.a : pair.b)) : its.map((pair) => turned(pair, best));
  return all.sort((a, b) => b.difference.value - a.difference.value);
}

function pairFigure(title, note, find, middle, form, chart) {
  figure("comparisons", title, note, (width) => {
    const rows = pairs().filter((pair) => known(pair[find].value)).map((pair) => ({
      ...pair[find], group: pair.first, also: pair.second.key, name: `${pair.first.name} over ${pair.second.name}`, title: pair.says,
      text: [form(pair[find].value), interval(pair[find], form)], faint: !(pair[find].low > middle || pair[find].high < middle),
    }));
    return rows.length ? rowChart(width, { kind: "dot", rows, references: [{ value: middle }], ...chart, label: labelOf(title, rows) }) : null;
  });
}

// Legend and highlights.

function legend() {
  const button = (group) => tinted(html("button", { type: "button", "aria-pressed": "true", click: () => show((one) => (one === group ? !one.shown : one.shown)) },
    swatch(group), html("span", null, group.name)), group);
  const all = html("button", { type: "button", class: "plain", click: () => show(() => true) }, "all");
  const none = html("button", { type: "button", class: "plain", click: () => show(() => false) }, "none");
  const buttons = groups.map(button);
  const place = document.getElementById("legend");
  place.append(html("div", { role: "group", "aria-label": "Groups that are shown" }, buttons, groups.length > 1 ? [all, none] : []));
  place.classList.toggle("long", groups.length > 12);
  document.getElementById("learning").hidden = false;
  function show(choose) {
    for (const group of groups) group.shown = choose(group);
    for (const group of groups) buttons[group.key].setAttribute("aria-pressed", group.shown);
    for (const row of document.querySelectorAll("tr[data-group], details[data-group]")) row.hidden = !groups[row.dataset.group].shown;
    redraw();
  }
}

/** All that belongs to one group stands out while the mouse is over it. */
function light(event) {
  const over = event.pointerType === "mouse" ? event.target.closest?.("[data-group]") : null;
  for (const one of document.querySelectorAll(".on")) one.classList.remove("on");
  document.body.classList.toggle("lit", Boolean(over));
  for (const key of over?.dataset.group.split(" ") ?? []) {
    for (const one of document.querySelectorAll(`[data-group~="${key}"]`)) one.classList.add("on");
  }
}

// Tables.

/** A table; a column is {head, text(row), value(row)}; with a value it can be sorted by it. */
function table(caption, columns, rows, tune = () => {}) {
  const heads = columns.map((column) => {
    const button = column.value ? html("button", { type: "button", click: () => sort(column) }, column.head) : column.head;
    return html("th", { scope: "col", class: column.words ? null : "number" }, button);
  });
  const lines = rows.map((row) => {
    const line = html("tr", null, columns.map((column, place) =>
      html(place ? "td" : "th", { scope: place ? null : "row", class: column.words ? null : "number" }, column.text(row))));
    tune(line, row);
    return line;
  });
  const body = html("tbody", null, lines);
  function sort(column) {
    const head = heads[columns.indexOf(column)];
    const was = head.getAttribute("aria-sort");
    const up = was ? was === "descending" : Boolean(column.words || column.least);
    for (const one of heads) one.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const order = rows.map((_, place) => place).sort((a, b) => compare(column.value(rows[a]), column.value(rows[b]), up));
    body.append(...order.map((place) => lines[place]));
  }
  return html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    html("table", null, html("caption", null, caption), html("thead", null, html("tr", null, heads)), body));
}

/** What is unknown comes last, whichever way. */
function compare(a, b, up) {
  if (a === null || a === undefined || b === null || b === undefined) return (a ?? null) === (b ?? null) ? 0 : (a ?? null) === null ? 1 : -1;
  const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return up ? order : -order;
}
