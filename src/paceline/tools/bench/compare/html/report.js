"use strict";
// The page: which groups are shown, and the figures and tables of it.

// Legend and highlights.

function legend() {
  const buttons = groups.map((group) => {
    const click = () => show((one) => (one === group ? !one.shown : one.shown));
    const made = html("button", { type: "button", "aria-pressed": "true", click });
    made.append(swatch(group), html("span", null, group.name));
    return tinted(made, group);
  });
  const every = (name, choice) =>
    html("button", { type: "button", class: "plain", click: () => show(() => choice) }, name);
  const both = groups.length > 1 ? [every("all", true), every("none", false)] : [];
  const place = document.getElementById("legend");
  place.append(html("div", { role: "group", "aria-label": "Groups that are shown" }, buttons, both));
  place.classList.toggle("long", groups.length > 12);
  function show(choose) {
    for (const group of groups) group.shown = choose(group);
    for (const group of groups) buttons[group.key].setAttribute("aria-pressed", group.shown);
    for (const row of document.querySelectorAll("tr[data-group], details[data-group]")) {
      row.hidden = row.dataset.group.split(" ").some((key) => !groups[key].shown);
    }
    redraw();
  }
}

/** All that belongs to a group stands out while the mouse is over some of it. */
function light(event) {
  const over = event.pointerType === "mouse" ? event.target.closest("[data-group]") : null;
  for (const one of document.querySelectorAll(".on")) one.classList.remove("on");
  document.body.classList.toggle("lit", over !== null);
  for (const key of over?.dataset.group.split(" ") ?? []) {
    for (const one of document.querySelectorAll(`[data-group~="${key}"]`)) one.classList.add("on");
  }
}

// All of it.

function charts() {
  const goal = content.target?.value;
  const references = known(goal) ? [{ value: goal, text: `target ${number(goal)}` }] : [];
  const all = groups.flatMap((group) => group.runs ?? []);
  const longest = (kind) => Math.max(0, ...all.map((run) => run[kind] ?? 0));
  const end = (kind) => (content.budget?.axis === kind ? content.budget.value : longest(kind));
  const ends = { chart: () => ({ references }) };
  const scores = "Interquartile mean with its 95 % interval, best first.";
  curves("time", "Return over time", "wall-clock time");
  curves("steps", "Return over steps", "environment steps");
  legend();
  if (has("score")) rowFigure("outcome", "Return at the end", scores, "score", ends);
  if (has("evaluation")) {
    rowFigure("outcome", "Evaluation at the end", "The same, of the final evaluation.", "evaluation", ends);
  }
  if (known(goal)) {
    const inTime = (longest) => ({ unit: timeUnit(longest)[0], suffix: ` ${timeUnit(longest)[1]}` });
    targetFigure("Time to the target", "time_to", duration, inTime, end("time"));
    targetFigure("Steps to the target", "steps_to", number, () => ({}), end("steps"));
  }
  if (has("fps")) {
    const bars = { chart: () => ({ kind: "bar" }) };
    rowFigure("speed", "Throughput", "Environment steps per second.", "fps", bars);
  }
  if (groups.some((group) => group.phases)) phaseFigure();
  if (content.pairs?.some((pair) => known(pair.difference))) {
    const note = (whose) =>
      `Return of ${whose} less that of the other; pale unless the 95 % interval leaves out zero.`;
    pairFigure("Difference of returns", "difference", 0, number, note);
  }
  if (content.pairs?.some((pair) => known(pair.improvement?.value))) {
    const form = { domain: [0, 1], unit: 0.01, suffix: " %" };
    const note = (whose) =>
      `That a run of ${whose} returns more than one of the other; pale unless the interval leaves out 50 %.`;
    pairFigure("Probability of improvement", "chance", 0.5, percent, note, form);
  }
}

function tables() {
  const folded = (summary, found) => html("details", null, html("summary", null, summary), found);
  if (content.pairs?.length) {
    const title = `All comparisons: ${content.pairs.length}`;
    const made = folded(html("span", null, title), pairTable(title, content.pairs, groups));
    made.classList.toggle("bulky", content.pairs.length > MOST_PAIRS);
    reveal("comparisons").append(made);
  }
  reveal("results").append(groupTable(groups, content.target));
  for (const group of groups.filter((one) => one.runs?.length)) {
    const counted = group.runs.filter((run) => run.counted).length;
    const less = counted < group.runs.length ? `, ${counted} counted` : "";
    const says = `${group.runs.length} ${group.runs.length === 1 ? "run" : "runs"}${less}`;
    const summary = [swatch(group), html("span", null, group.name), html("small", null, says)];
    reveal("runs").append(tinted(folded(summary, runTable(group)), group));
  }
}

/** On paper, all but long tables of pairs is unfolded, and charts are as wide as half a page. */
function preparePrint() {
  let folded = [];
  const open = (state) => folded.forEach((one) => { one.open = state; });
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open], .bulky)")];
    open(true);
    redraw(PRINTED);
  });
  addEventListener("afterprint", () => {
    open(false);
    redraw();
  });
}

charts();
tables();
redraw();
preparePrint();
let drawnFor = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== drawnFor) redraw();
  drawnFor = innerWidth;
});
document.addEventListener("pointerover", light);
