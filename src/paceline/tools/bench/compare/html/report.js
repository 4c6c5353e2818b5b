"use strict";
// What a reader can do with the page: hide groups, point at curves, sort tables, print.

const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const number = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 3 });
const MOST_TOLD = 16; // groups whose values are listed beside the pointer

function make(name, className, ...children) {
  const made = document.createElement(name);
  made.className = className;
  made.append(...children);
  return made;
}

// Legend: a group that is hidden is so everywhere.

const hidden = new Set();
const buttons = all("#legend button[data-group]");

function hideWhere(choose) {
  for (const button of buttons) {
    const { group } = button.dataset;
    if (choose(group)) hidden.add(group);
    else hidden.delete(group);
    button.setAttribute("aria-pressed", !hidden.has(group));
  }
  for (const one of all("section [data-group]")) {
    one.toggleAttribute("hidden", one.dataset.group.split(" ").some((key) => hidden.has(key)));
  }
}

for (const button of buttons) {
  const { group } = button.dataset;
  button.addEventListener("click", () => hideWhere((key) => (key === group) !== hidden.has(key)));
}
for (const button of all("#legend .plain")) {
  button.addEventListener("click", () => hideWhere(() => button.textContent === "none"));
}

/** All that belongs to a group stands out while the mouse is over some of it. */
document.addEventListener("pointerover", (event) => {
  const over = event.pointerType === "mouse" ? event.target.closest("[data-group]") : null;
  for (const one of all(".on")) one.classList.remove("on");
  document.body.classList.toggle("lit", over !== null);
  for (const key of over?.dataset.group.split(" ") ?? []) {
    for (const one of all(`[data-group~="${key}"]`)) one.classList.add("on");
  }
});

// Curves: a line that follows the pointer or arrow keys, and beside it all values there.

/** Between two points of a line, on the straight line that joins them; in percent of the chart. */
function heightAt(line, x) {
  const points = [...line.points];
  const after = points.findIndex((point) => point.x >= x);
  if (after < 0 || (after === 0 && points[0].x > x)) return null;
  const [a, b] = [points[Math.max(0, after - 1)], points[after]];
  return b.x === a.x ? b.y : a.y + ((x - a.x) / (b.x - a.x)) * (b.y - a.y);
}

function follow(plot) {
  const [x, y] = [plot.dataset.x, plot.dataset.y].map((ends) => ends.split(" ").map(Number));
  const pointed = make("div", "pointed");
  const tip = make("div", "tip");
  tip.setAttribute("role", "status");
  plot.append(pointed, tip);
  let at = 100;
  function hide() {
    pointed.hidden = tip.hidden = true;
  }
  function show(percent) {
    at = Math.min(100, Math.max(0, percent));
    const lines = all("polyline:not([hidden])", plot).map((line) => [line, heightAt(line, at)]);
    const found = lines.filter(([, height]) => height !== null).sort((a, b) => a[1] - b[1]);
    pointed.style.left = `${at}%`;
    pointed.replaceChildren(...found.map(([line, height]) => {
      const dot = make("i", "dot tinted");
      dot.style.cssText = `${line.style.cssText}; top: ${height}%`;
      return dot;
    }));
    const rows = found.slice(0, MOST_TOLD).map(([line, height]) => {
      const button = buttons[line.dataset.group];
      const value = y[1] - (height / 100) * (y[1] - y[0]);
      return make("li", "", ...[...button.cloneNode(true).children], make("b", "", number(value)));
    });
    const rest = found.length > MOST_TOLD ? [make("p", "", `and ${found.length - MOST_TOLD} lower`)] : [];
    const place = `${number(x[0] + (at / 100) * (x[1] - x[0]))} ${plot.dataset.unit}`;
    tip.replaceChildren(make("p", "", place), make("ul", "", ...rows), ...rest);
    pointed.hidden = tip.hidden = false;
    const [room, wide] = [plot.clientWidth - tip.offsetWidth, tip.offsetWidth + 14];
    const left = (at / 100) * plot.clientWidth;
    tip.style.left = `${Math.max(0, Math.min(room, at > 50 ? left - wide : left + 14))}px`;
  }
  const point = (event) => {
    const box = plot.getBoundingClientRect();
    show((100 * (event.clientX - box.left)) / box.width);
  };
  for (const kind of ["pointermove", "pointerdown"]) plot.addEventListener(kind, point);
  for (const kind of ["pointerleave", "blur"]) plot.addEventListener(kind, hide);
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -2.5, ArrowRight: 2.5 }[event.key];
    if (event.key === "Escape") hide();
    if (!step) return;
    event.preventDefault();
    show(at + step);
  });
  hide();
}

all(".curves").forEach(follow);

// Tables: sorted by a click on a head; what is unknown comes last, whichever way.

function sort(head) {
  const column = [...head.parentNode.children].indexOf(head);
  const table = head.closest("table");
  const words = head.classList.contains("words");
  const was = head.getAttribute("aria-sort");
  const up = was ? was === "descending" : words || head.classList.contains("least");
  const valueOf = ({ children }) => {
    const { dataset, textContent } = children[column];
    return words || dataset.value === undefined ? textContent : Number(dataset.value);
  };
  for (const one of all("[aria-sort]", table)) one.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const rows = all("tbody tr", table).sort((one, other) => {
    const [a, b] = [valueOf(one), valueOf(other)];
    if (a === "–" || b === "–") return (a === "–") - (b === "–");
    const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
    return up ? order : -order;
  });
  table.tBodies[0].append(...rows);
}

for (const button of all("thead button")) {
  button.addEventListener("click", () => sort(button.parentNode));
}

// On paper, all but long tables of pairs is unfolded.

let folded = [];
addEventListener("beforeprint", () => {
  folded = all("details:not([open], .bulky)");
  for (const one of folded) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of folded) one.open = false;
});
