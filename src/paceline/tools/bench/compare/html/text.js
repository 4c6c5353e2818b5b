"use strict";
// Elements, texts and numbers: what charts and tables are written with.

const FONT = 12; // CSS pixels; a chart is drawn for the width that it has, so they are real ones
const FAMILY = getComputedStyle(document.body).fontFamily;
const pen = document.createElement("canvas").getContext("2d");
const svg = maker("http://www.w3.org/2000/svg");
const html = maker("http://www.w3.org/1999/xhtml");
const known = (value) => typeof value === "number";

/** A function that makes elements of a namespace; strings in them are text, never markup. */
function maker(namespace) {
  return (name, attributes, ...children) => {
    const made = document.createElementNS(namespace, name);
    for (const [key, value] of Object.entries(attributes ?? {})) {
      if (typeof value === "function") made.addEventListener(key, value);
      else if (value !== null && value !== undefined) made.setAttribute(key, value);
    }
    made.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
    return made;
  };
}

/** The width of a text in pixels. */
function measure(text, weight = 400) {
  pen.font = `${weight} ${FONT}px ${FAMILY}`;
  return pen.measureText(text).width;
}

const widest = (texts, weight) => Math.max(0, ...texts.map((text) => measure(text, weight)));

/** As much of a text as there is room for. */
function fit(text, room) {
  if (measure(text) <= room) return text;
  const letters = [...text].slice(0, 200);
  while (letters.length > 1 && measure(letters.join("") + "…") > room) letters.pop();
  return letters.join("").trimEnd() + "…";
}

function unitOf(size) {
  return size >= 1e9 ? [1e9, "B"] : size >= 1e6 ? [1e6, "M"] : size >= 1e4 ? [1e3, "k"] : [1, ""];
}

function fixed(value, digits) {
  const form = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return (value < 0 ? "−" : "") + Math.abs(value).toLocaleString("en-US", form);
}

/** Three digits, as 0.0123, 1.23, 12.3, 123, 1,234, 12.3k or 1.23M; or as many as one `like` it has. */
function number(value, like = value) {
  if (!known(value)) return "–";
  const size = Number(Math.max(Math.abs(value), Math.abs(like)).toPrecision(3));
  if (value === 0 || size === 0) return "0";
  const [unit, letter] = unitOf(size);
  const digits = Math.max(0, 2 - Math.floor(Math.log10(size / unit)));
  return fixed(value / unit, Math.min(digits, 12)) + letter;
}

/** The unit in which times as long as this are told. */
function timeUnit(seconds) {
  return seconds < 180 ? [1, "s"] : seconds < 10800 ? [60, "min"] : [3600, "h"];
}

function duration(seconds, like = seconds, bare = false) {
  if (!known(seconds)) return "–";
  const [unit, name] = timeUnit(Math.abs(like));
  return number(seconds / unit, like / unit) + (bare ? "" : `\u00a0${name}`);
}

function percent(share, like = share, bare = false) {
  return known(share) ? Math.round(100 * share) + (bare ? "" : "\u00a0%") : "–";
}

function probability(p) {
  return known(p) ? (p < 0.001 ? "< 0.001" : p.toFixed(3)) : "–";
}

/** The ends of an interval, both with the digits of the larger. */
function interval(one, form = number) {
  if (!known(one?.low) || !known(one?.high)) return "";
  const like = Math.max(Math.abs(one.low), Math.abs(one.high));
  return `${form(one.low, like, true)} to ${form(one.high, like, true)}`;
}

/** Round numbers between two ends, at most about so many. */
function ticks([low, high], most) {
  const rough = (high - low) / most;
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
  return values.map((value) => (value === 0 ? "0" : fixed(value / unit, digits) + letter + suffix));
}

/** As many ticks as fit beside each other, or above: where they are, and their texts. */
function axis(domain, room, { unit = 1, suffix = "", upright = false } = {}) {
  const scaled = domain.map((end) => end / unit);
  for (let most = Math.max(1, Math.floor(room / (upright ? 32 : 40))); ; most -= 1) {
    const values = ticks(scaled, most);
    const texts = tickTexts(values, suffix);
    const gap = (room * (values[1] - values[0])) / (scaled[1] - scaled[0]);
    if (most === 1 || values.length < 2 || upright || gap > widest(texts) + 14) {
      return { at: values.map((value) => value * unit), texts };
    }
  }
}
