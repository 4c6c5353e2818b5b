"use strict";
// Figures: what is drawn of the groups that are shown.

const content = JSON.parse(document.getElementById("content").textContent);
const groups = content.groups.map((group, key) => ({ ...group, key, shown: true }));
const figures = [];
const MOST_PAIRS = 10; // of more than these, only those of the best group are drawn
const MOST_TOLD = 16; // groups whose values are listed beside the pointer
const NARROWEST = 280; // CSS pixels
const PRINTED = 330;
const PHASES = {
  rollout: "sampling",
  wait: "waiting for workers",
  learn: "learning",
  sync: "exchange between ranks",
  other: "everything else",
};

const shown = () => groups.filter((group) => group.shown);
const has = (find) => groups.some((group) => known(group[find]?.value));
const by = (find) => (a, b) => compare(a[find]?.value, b[find]?.value, false) || a.key - b.key;

/** A figure; `draw(width)` gives its drawing and maybe a note, or nothing where nothing is known. */
function figure(section, title, note, draw, extra) {
  const place = html("div", { class: "plot" });
  const says = html("p", null, note);
  const caption = html("figcaption", null, html("h3", null, title), says);
  reveal(section).querySelector(".grid").append(html("figure", null, caption, place, extra));
  figures.push({ place, says, draw });
}

function reveal(section) {
  const found = document.getElementById(section);
  found.hidden = false;
  return found;
}

/** Draw all figures, as wide as their places are or as is said. */
function redraw(given) {
  const widths = figures.map(({ place }) => given ?? Math.max(NARROWEST, place.clientWidth));
  for (const [index, { place, says, draw }] of figures.entries()) {
    const found = shown().length ? draw(widths[index]) : null;
    const nothing = shown().length ? "Nothing is known of what is shown." : "No group is shown.";
    place.replaceChildren(found?.drawn ?? html("p", { class: "empty" }, nothing));
    if (found?.note) says.textContent = found.note;
    if (found?.plot) follow(place, found);
  }
}

function labelOf(title, parts) {
  const more = parts.length > MOST_TOLD ? `; and ${parts.length - MOST_TOLD} more` : "";
  return `${title}. ${parts.slice(0, MOST_TOLD).join("; ")}${more}.`;
}

// Learning curves.

function curves(name, title, xName) {
  const curve = (group) => ({ x: [], y: [], ...group.curves?.[name], group });
  const whole = (line) => line.y.some(known) && line.x.some(known);
  if (!groups.map(curve).some(whole)) return;
  const bands = groups.map(curve).some((line) => line.low?.some(known));
  const each = content.budget ? `${content.budget.text} each. ` : "";
  figure("learning", title, each + (bands ? "Bands are 95 % intervals." : ""), (width) => {
    const series = shown().map(curve).filter(whole);
    if (!series.length) return null;
    const end = Math.max(...series.flatMap((line) => line.x.filter(known)));
    const [unit, unitName] = name === "time" ? timeUnit(end) : [1, ""];
    const finals = series.map((line) => `${line.group.name} ends at ${number(line.y.findLast(known))}`);
    const drawn = lineChart(width, {
      id: name, series, unit, target: content.target?.value, label: labelOf(title, finals),
      xName: unitName ? `${xName}, ${unitName}` : xName,
    });
    return { ...drawn, series, form: name === "time" ? duration : (x) => `${number(x)} steps` };
  });
}

/** A line that follows the pointer or arrow keys, and beside it all values there, greatest first. */
function follow(place, { drawn, plot, series, form }) {
  const line = svg("line", { y1: plot.top, y2: plot.bottom, class: "crosshair" });
  const dots = svg("g");
  const pointed = svg("g", { class: "pointed", visibility: "hidden" }, line, dots);
  const tip = html("div", { class: "tip", role: "status", hidden: "" });
  let at = plot.right;
  function hide() {
    pointed.setAttribute("visibility", "hidden");
    tip.hidden = true;
  }
  function show(pixel) {
    at = Math.min(plot.right, Math.max(plot.left, pixel));
    const share = (at - plot.left) / (plot.right - plot.left);
    const x = plot.xDomain[0] + share * (plot.xDomain[1] - plot.xDomain[0]);
    const all = series.map((one) => ({ group: one.group, value: valueAt(one, x) }));
    const found = all.filter((one) => known(one.value)).sort((a, b) => b.value - a.value);
    for (const end of ["x1", "x2"]) line.setAttribute(end, at);
    dots.replaceChildren(...found.map(({ group, value }) =>
      tinted(svg("circle", { cx: at, cy: plot.y(value), r: 3, class: "dot" }), group)));
    pointed.setAttribute("visibility", "visible");
    const rows = found.slice(0, MOST_TOLD).map(({ group, value }) =>
      html("li", null, swatch(group), html("span", null, group.name), html("b", null, number(value))));
    const rest = found.length - rows.length;
    tip.replaceChildren(html("p", null, found.length ? form(x) : `${form(x)}: nothing known`),
      html("ul", null, rows), rest ? html("p", null, `and ${rest} lower`) : "");
    tip.hidden = false;
    const [room, wide] = [place.clientWidth - tip.offsetWidth, tip.offsetWidth + 14];
    tip.style.left = `${Math.max(0, Math.min(room, share > 0.5 ? at - wide : at + 14))}px`;
    tip.style.top = `${place.clientWidth < 480 ? plot.bottom + 24 : plot.top}px`;
  }
  const point = (event) => show(event.clientX - drawn.getBoundingClientRect().left);
  drawn.append(pointed);
  drawn.classList.add("followed");
  drawn.setAttribute("tabindex", "0");
  for (const kind of ["pointermove", "pointerdown"]) drawn.addEventListener(kind, point);
  for (const kind of ["pointerleave", "blur"]) drawn.addEventListener(kind, hide);
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

/** Groups in an order, each with a value, its interval, and a text of both. */
function rowFigure(section, title, note, find, { form = number, order = by(find), text, chart }) {
  const told = text ?? ((group) => [form(group[find]?.value), interval(group[find], form)]);
  figure(section, title, note, (width) => {
    const rows = shown().sort(order).map((group) => ({
      group, name: group.name, ...group[find], text: told(group), faint: !known(group[find]?.value),
    }));
    if (!text && rows.every((row) => row.faint)) return null;
    const label = labelOf(title, rows.map((row) => `${row.name}: ${row.text.filter(Boolean).join(", ")}`));
    return rowChart(width, { kind: "dot", rows, label, ...chart(rows) });
  });
}

/** How long it took to the target; first those of which more runs got there. */
function targetFigure(title, find, form, axisOf, end) {
  if (!has(find) && !end) return;
  const part = (group) => (group.reached ?? 0) / (group.count || 1);
  const text = (group) => [
    known(group[find]?.value) ? form(group[find].value) : group.reached ? "in part" : "not reached",
    `${group.reached ?? 0} of ${group.count}`,
  ];
  const sooner = (a, b) => compare(a[find]?.value, b[find]?.value, true);
  const order = (a, b) => part(b) - part(a) || sooner(a, b) || a.key - b.key;
  const chart = (rows) => {
    const longest = Math.max(0, ...rows.map((row) => row.value ?? 0));
    return { kind: "bar", ...axisOf(longest || end), ...(longest ? {} : { domain: [0, end || 1] }) };
  };
  const { value, source } = content.target;
  const note = `Until a return of ${number(value)}, ${source}; and how many runs got there.`;
  rowFigure("outcome", title, note, find, { form, order, text, chart });
}

function phaseFigure() {
  const title = "Where the time goes";
  const all = Object.keys(PHASES);
  const parts = (group) => Object.fromEntries(all.map((name) => [name, group.phases[name] ?? 0]));
  const used = all.filter((name) => groups.some((group) => group.phases?.[name] >= 0.005));
  const key = used.map((name) => html("li", null, html("i", { class: `part ${name}` }), PHASES[name]));
  const say = (group) => used.map((name) => `${PHASES[name]} ${percent(parts(group)[name])}`).join(", ");
  figure("speed", title, "Shares of an iteration.", (width) => {
    const rows = shown().filter((group) => group.phases).sort(by("fps")).map((group) => ({
      group, name: group.name, parts: parts(group), text: [""], title: `${group.name}: ${say(group)}`,
    }));
    const label = labelOf(title, rows.map((row) => row.title));
    const form = { domain: [0, 1], unit: 0.01, suffix: " %" };
    return rows.length ? rowChart(width, { kind: "share", rows, label, ...form }) : null;
  }, html("ul", { class: "key" }, key));
}

// Pairs of groups.

/** A pair with one of the two first: by how much, and how likely, it is better than the second. */
function turned(pair, first) {
  const chance = pair.improvement ?? {};
  const same = first === pair.b;
  const flip = (whole, value) => (known(value) ? whole - value : null);
  const turn = (whole, one) => (same ? one
    : { value: flip(whole, one.value), low: flip(whole, one.high), high: flip(whole, one.low) });
  return {
    first: groups[first], second: groups[same ? pair.a : pair.b], says: pair.says,
    difference: turn(0, { value: pair.difference, low: pair.low, high: pair.high }),
    chance: turn(1, chance),
  };
}

/** The better one first; of many pairs, those of the best group that is shown. */
function pairsShown() {
  const seen = (pair) => groups[pair.a].shown && groups[pair.b].shown;
  const all = content.pairs.filter((pair) => known(pair.difference) && seen(pair));
  const best = shown().sort(by("score"))[0];
  const its = all.filter((pair) => pair.a === best.key || pair.b === best.key);
  const alone = all.length > MOST_PAIRS && its.length > 0;
  const pairs = alone
    ? its.map((pair) => turned(pair, best.key))
    : all.slice(0, 4 * MOST_PAIRS).map((pair) => turned(pair, pair.difference < 0 ? pair.a : pair.b));
  pairs.sort((a, b) => b.difference.value - a.difference.value);
  return { pairs, best: alone ? best : null };
}

function pairFigure(title, find, middle, form, note, chart) {
  figure("comparisons", title, "", (width) => {
    const { pairs, best } = pairsShown();
    const found = pairs.filter((pair) => known(pair[find].value));
    const rows = found.map(({ first, second, says, [find]: one }) => ({
      ...one, group: best ? second : first, also: (best ? first : second).key, title: says,
      name: best ? `over ${second.name}` : `${first.name} over ${second.name}`,
      text: [form(one.value), interval(one, form)],
      faint: !known(one.low) || !known(one.high) || (one.low <= middle && one.high >= middle),
    }));
    if (!rows.length) return null;
    const label = labelOf(title, rows.map((row) => `${row.name}: ${row.text.filter(Boolean).join(", ")}`));
    const drawn = rowChart(width, { kind: "dot", rows, references: [{ value: middle }], label, ...chart });
    return { ...drawn, note: note(best ? `${best.name}, the best,` : "the better group") };
  });
}
