"use strict";
// Tables that can be sorted, by click or by keyboard: of groups, of runs, of pairs.

const absent = (value) => value === null || value === undefined;

/** What is unknown comes last, whichever way. */
function compare(a, b, up) {
  if (absent(a) || absent(b)) return absent(a) - absent(b);
  const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return up ? order : -order;
}

/**
 * A column is {head, text(row), value(row)}: without a value it can't be sorted by. `words` are set to
 * the left, and `least` says that small is good; else the first click brings the greatest up.
 */
function table(caption, columns, rows, { tune = () => {}, by } = {}) {
  const look = (column) => ({ class: column.wrap ? "wrap" : column.words ? null : "number" });
  const heads = columns.map((column) => html("th", { scope: "col", ...look(column) }, column.value
    ? html("button", { type: "button", click: () => sort(column) }, column.head)
    : column.head));
  const lines = rows.map((row) => {
    const [first, ...others] = columns;
    const line = html("tr", null, html("th", { scope: "row", ...look(first) }, first.text(row)),
      others.map((column) => html("td", look(column), column.text(row))));
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
    const order = [...rows.keys()];
    order.sort((a, b) => compare(column.value(rows[a]), column.value(rows[b]), up));
    body.append(...order.map((place) => lines[place]));
  }
  if (columns[by]?.value) sort(columns[by]);
  return html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    html("table", null, html("caption", null, caption), html("thead", null, html("tr", null, heads)), body));
}

function plain(head, find, form = number, least = false) {
  return { head, least, value: (one) => one[find], text: (one) => form(one[find]) };
}

/** A quantity, and below it its interval. */
function quantity(head, find, form = number, least = false) {
  const text = ({ [find]: one }) => [form(one?.value), html("small", null, interval(one, form))];
  return { head, least, text, value: (group) => group[find]?.value };
}

const words = (head, find) => ({ head, words: true, value: find, text: (one) => find(one) ?? "–" });

function groupTable(groups, target) {
  const reached = (group) => (target ? (group.reached ?? 0) / (group.count || 1) : null);
  const all = [
    { ...words("group", (group) => group.name), text: (group) => [swatch(group), group.name] },
    plain("runs", "count", String),
    quantity("return at the end", "score"),
    quantity("evaluation", "evaluation"),
    quantity("steps/s", "fps"),
    { head: "reached target", value: reached, text: (group) => `${group.reached ?? 0} of ${group.count}` },
    quantity("time to target", "time_to", duration, true),
    quantity("steps to target", "steps_to", number, true),
    plain("memory, MB", "memory_mb", number, true),
    plain("CPU, %", "cpu_percent", number, true),
    plain("start-up", "startup", duration, true),
  ];
  const columns = all.filter((column) => column.words || groups.some((group) => known(column.value(group))));
  const by = columns.findIndex((column) => column.head === "return at the end");
  return table("Groups of runs; below each value its 95 % interval", columns, groups, { tune: tinted, by });
}

function runTable(group) {
  const all = [
    words("run", (run) => run.name),
    plain("seed", "seed", (seed) => String(seed ?? "–"), true),
    words("state", (run) => run.state + (run.counted ? "" : ", not counted")),
    plain("return at the end", "score"),
    plain("evaluation", "evaluation"),
    plain("steps/s", "fps"),
    plain("time", "time", duration),
    plain("steps", "steps"),
    plain("time to target", "time_to", duration, true),
    plain("steps to target", "steps_to", number, true),
  ];
  const columns = all.filter((column) => column.words || group.runs.some((run) => known(column.value(run))));
  const tune = (line, run) => line.classList.toggle("faint", !run.counted);
  return table(`Runs of ${group.name}`, columns, group.runs, { tune });
}

function pairTable(title, pairs, groups) {
  const chance = (pair) => pair.improvement?.value;
  const columns = [
    words("first", (pair) => groups[pair.a].name),
    words("second", (pair) => groups[pair.b].name),
    plain("second − first", "difference"),
    { head: "95 % interval", text: (pair) => interval(pair) || "–" },
    plain("p", "p", probability, true),
    plain("p, adjusted", "p_adjusted", probability, true),
    { head: "second is better", value: chance, text: (pair) => percent(chance(pair)) },
    words("pairing", (pair) => pair.pairing),
    { ...words("what that says", (pair) => pair.says), wrap: true },
  ];
  const tune = (line, pair) => { line.dataset.group = `${pair.a} ${pair.b}`; };
  return table(title, columns, pairs, { tune });
}
