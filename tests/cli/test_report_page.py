"""report.html in a real browser: what a reader sees, and what never happens."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, found
from histories import FACTS, curve

from paceline import Config
from paceline.tools.bench.compare.command import compare
from paceline.tools.bench.compare.comparison import Curve, Missing
from paceline.tools.bench.compare.format import duration, interval, number, percent, short
from paceline.tools.bench.compare.history import FIELDS, History, flat
from paceline.tools.bench.compare.page import page
from paceline.tools.bench.compare.statistics import Estimate

LINES = 30
WHITE = "rgb(255, 255, 255)"
HOSTILE = (
    "<img src=x onerror=window.harmed=1>",
    "'\"`${harmed=1}{{css}}&amp;\\u003c" + "long" * 60,
    "</script><script>window.harmed=1</script><!--",
)


def history(name, final, fps=1000.0, **options):
    """A run whose return rises to `final`, as if it had been read."""
    config = Config(total_steps=10**5, **options)
    random = np.random.default_rng(config.seed)
    count = np.arange(1.0, LINES + 1)
    columns = {field: np.full(LINES, 0.1) for field in FIELDS}
    columns |= {"iter": count, "time": 2 * count, "steps": 2 * fps * count}
    columns |= {"episodes": np.full(LINES, 100.0), "memory_mb": 300 * count, "cpu_percent": count}
    columns["episode_return"] = curve(final, lines=LINES, seed=random.integers(1000))
    values, path = flat(config.as_dict()), Path(name)
    return path, History(path, config, FACTS, "done", columns, final - 1, values=values)


@cache
def sample(groups=3, runs=5, best=500.0, by=None, names=None, target=None, **changes):
    """The comparison of so many groups: the first is the best, every fifth much worse."""
    given = []
    for group in range(groups):
        final = best - 20 * abs(best) / 500 * group - (abs(best) if group % 5 == 4 else 0)
        for seed in range(runs):
            name = names[group] if names else f"runs/{group}-{seed}"
            options = {"lr": (group + 1) / 1000, "seed": seed}
            given.append(history(name, final, 500.0 * (group + 1) + seed, **options))
    made = compare(given, by and list(by), target=target)
    made = replace(made, failed=[Missing("A3C · ranks", "has no such form")])
    return replace(made, **changes)


def hostile():
    return sample(3, runs=2, by=("folder",), names=HOSTILE, verdict=HOSTILE, title=HOSTILE[0])


def unknown():
    """Runs of which nothing was measured but that they are done."""
    given = []
    for group in range(3):
        path, run = history(str(group), 1.0, lr=(group + 1) / 1000)
        columns = {name: np.full(LINES, math.nan) for name in FIELDS}
        given.append((path, replace(run, columns=columns, evaluation=None, facts={})))
    return compare(given)


def with_curves(made, *lines):
    """The same with these curves over time, [x, y], and none over steps."""
    none = np.empty(0)
    empty, rows = Curve(none, none, none, none), []
    for row, (x, y) in zip(made.rows, lines, strict=True):
        x, y = np.array(x, float), np.array(y, float)
        rows.append(replace(row, curves={"time": Curve(x, y, y, y), "steps": empty}))
    return replace(made, rows=rows)


CASES = {
    "one run": lambda: sample(1, runs=1),
    "two groups": lambda: sample(2),
    "twelve groups": lambda: sample(12),
    "forty groups": lambda: sample(40, runs=2),
    "not reached": lambda: sample(3, target=10**6),
    "one point": lambda: with_curves(sample(2), ([9.0], [1.0]), ([9.0], [2.0])),
    "nothing known": unknown,
    "losing": lambda: sample(3, best=-2000.0),
    "hostile": hostile,
}
WRONG = """(() => {
  const wrong = [], wide = document.documentElement.scrollWidth;
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.5
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;
  for (const plot of document.querySelectorAll(".plot")) {
    const texts = [...plot.querySelectorAll("b, small, .name, .part")]
      .filter((one) => one.textContent && one.getClientRects().length);
    const boxes = texts.map((one) => one.getBoundingClientRect());
    texts.forEach((one, place) => {
      const says = (what) => wrong.push(`${one.textContent} ${what}`);
      if (boxes[place].left < 0 || boxes[place].right > wide) says("is beside the page");
      if (one.className === "part" && one.scrollWidth > one.clientWidth) says("is cut off");
      if (parseFloat(getComputedStyle(one).fontSize) < 10.5) says("is too small");
      if (/NaN|Infinity|undefined|null|None|nan|inf/.test(one.textContent)) says("is no number");
      for (let other = 0; other < place; other += 1)
        if (meet(boxes[place], boxes[other])) says(`is over ${texts[other].textContent}`);
    });
    for (const axis of plot.querySelectorAll(".axis")) {
      const ticks = [...axis.children].map((one) => one.textContent);
      if (new Set(ticks).size < Math.max(2, ticks.length)) wrong.push(`too few or equal: ${ticks}`);
    }
    if (/NaN|nan|inf/.test(plot.innerHTML.replace(/<span class="name">.*?<\\/span>/g, "")))
      wrong.push("not a number");
  }
  if (wide > screen.width) wrong.push(`the page is ${wide} wide`); // innerWidth would grow with it
  return wrong;
})()"""
PALE = """(() => {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const seen = (...layers) => {
    for (const color of layers) { pen.fillStyle = color; pen.fillRect(0, 0, 1, 1); }
    const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((value) => value / 255)
      .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const below = (one) => {
    const found = [];
    for (; one; one = one.parentElement) found.unshift(getComputedStyle(one).backgroundColor);
    return found;
  };
  const walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const pale = [];
  let count = 0;
  while (walk.nextNode()) {
    const one = walk.currentNode.parentElement, layers = below(one);
    if (!walk.currentNode.data.trim() || !one.getClientRects().length) continue;
    const ink = getComputedStyle(one).color;
    const both = [seen("white", ...layers), seen("white", ...layers, ink)];
    const contrast = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    count += 1;
    if (contrast < 4.5) pale.push([one.textContent, ink, layers.at(-1)]);
  }
  return { count, pale };
})()"""
FIGURES = "[...document.querySelectorAll('.plot')].length"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if found() is None:
        pytest.skip("no Chromium on this machine")
    with Browser(tmp_path_factory.mktemp("browser") / "profile") as browser:
        yield browser


@pytest.fixture
def opened(chromium, tmp_path):
    """Write a page and open it; by the end of a test it has asked for nothing and said nothing."""

    def run(made, width=1400, **options):
        path = tmp_path / "report.html"
        path.write_text(page(made), encoding="utf-8")
        return chromium.open(path, width, **options)

    yield run
    assert chromium.problems == []
    assert chromium.requests == []


# The file.


def test_page_holds_what_is_said_and_is_small_without_its_curves():
    made = sample(2, notes=("runs/3 was cut short",))
    text = page(made)
    for said in (*made.verdict, *made.notes, made.failed[0].cause, made.subtitle):
        assert said in text
    assert len(re.sub('points="[^"]*"', "", text)) < 60_000


def test_page_has_nothing_to_load():
    text = page(sample(2))
    assert "default-src 'none'" in text
    assert not re.search(r"\bsrc=|@import|url\(|https?:|innerHTML|\beval\b|fetch\(", text)
    assert re.findall('href="([^"]*)"', text) == ["data:,"]


def test_hostile_names_are_no_markup_in_the_file():
    text = page(hostile())
    assert text.count("<script") == text.count("</script>") == 1
    assert "<img" not in text and "<!--" not in text


def test_names_of_files_that_are_no_text_can_be_written():
    name = b"runs/\xff".decode("utf-8", "surrogateescape")
    assert page(sample(1, title=name, notes=(name,))).encode("utf-8")


# What is drawn.


@pytest.mark.sampled(3)
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("case", CASES)
def test_every_case_is_drawn_within_its_place(opened, case, width):
    browser = opened(CASES[case](), width, mobile=width < 500)
    assert browser.js(WRONG) == []
    assert browser.js(FIGURES) >= (0 if case == "nothing known" else 5)
    browser.view(700)
    assert browser.js(WRONG) == []


@pytest.mark.parametrize("dark", [True, False])
@pytest.mark.parametrize("case", ["twelve groups", "not reached"])
def test_all_text_stands_out_from_its_background(opened, case, dark):
    browser = opened(CASES[case](), dark=dark)
    browser.js("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    browser.click("#legend button")
    browser.move(0, 0)
    seen = browser.js(PALE)
    assert seen["count"] > 150
    assert seen["pale"] == []
    assert (browser.js("getComputedStyle(document.body).backgroundColor") != WHITE) == dark


def test_hostile_names_are_shown_as_text(opened):
    browser = opened(hostile())
    assert browser.js("window.harmed") is None
    assert browser.js("document.querySelectorAll('img').length") == 0
    legend = "[...document.querySelectorAll('#legend [aria-pressed]')]"
    assert browser.js(f"{legend}.map((one) => one.textContent)") == list(HOSTILE)
    assert browser.js("document.querySelector('h1').textContent") == HOSTILE[0]
    assert HOSTILE[0] in browser.js("document.querySelector('#results .plot').textContent")


def test_on_paper_all_is_unfolded_and_light(opened):
    browser = opened(sample(3), 688, dark=True)  # A4 without its margins
    browser.print_view()
    browser.js("dispatchEvent(new Event('beforeprint'))")
    assert browser.js("document.querySelectorAll('details:not([open])').length") == 0
    assert browser.js("getComputedStyle(document.body).backgroundColor") == WHITE
    assert browser.js(WRONG) == []
    browser.js("dispatchEvent(new Event('afterprint'))")
    assert browser.js("document.querySelectorAll('details[open]').length") == 0


def test_without_scripts_text_charts_and_tables_are_there(opened, chromium):
    chromium.scripts(False)
    try:
        browser = opened(sample(2))
        assert "lr 0.001 scored best" in browser.js("document.body.innerText")
        assert browser.js(FIGURES) == 10
        assert browser.js("document.querySelectorAll('#results tbody tr').length") == 2
    finally:
        chromium.scripts(True)


def test_of_pairs_the_better_group_is_named_first_and_what_is_not_sure_is_pale(opened):
    names = "[...document.querySelectorAll('#comparisons figure:first-child {}')]"
    names += ".map((one) => one.textContent)"
    browser = opened(sample(2))
    assert browser.js(names.format(".name")) == ["lr 0.001 over lr 0.002"]
    assert browser.js(names.format(".faint")) == []
    browser = opened(sample(12, runs=1))  # of many pairs those with the best group
    worse = [f"lr 0.001 over lr {k / 1000:g}" for k in range(2, 13)]
    assert sorted(browser.js(names.format(".faint .name"))) == sorted(worse)


FORMS = [
    (number, 0.01234, "0.0123"),
    (number, 487.34, "487.3"),
    (number, -12.34, "-12.3"),
    (number, 1234.5, "1,234"),
    (number, 0, "0"),
    (number, None, "–"),
    (duration, 12.34, "12.3 s"),
    (duration, 600, "10 min"),
    (duration, 36000, "10 h"),
    (duration, None, "–"),
    (percent, 0.126, "13 %"),
    (short, 1_200_000.0, "1.2M"),
    (short, 0.1 + 0.2, "0.3"),
    (interval, Estimate(1.0, -4.53, 25.1), "1 (-4.53 to 25.1)"),
    (interval, Estimate(1.0), "1"),
]


@pytest.mark.parametrize(("form", "value", "text"), FORMS, ids=[text for *_, text in FORMS])
def test_numbers_are_written_as_a_reader_wants_them(form, value, text):
    assert form(value) == text


# What it does.


def test_legend_hides_a_group_everywhere_and_brings_it_back(opened):
    browser = opened(sample(3))
    drawn = (
        "[...document.querySelectorAll('.plot [data-group~=\"1\"]')]"
        ".filter((one) => one.getClientRects().length).length"
    )
    rows = "[...document.querySelectorAll('tr, details')].filter((one) => one.hidden).length"
    before = browser.js(drawn)
    assert before >= browser.js(FIGURES) == 10
    browser.click("#legend button[data-group='1']")
    assert browser.js("document.querySelector('#legend [data-group=\"1\"]').ariaPressed") == "false"
    assert (browser.js(drawn), browser.js(FIGURES)) == (0, 10)
    assert browser.js(rows) == 4  # of groups one, of runs one, of comparisons two
    browser.press("#legend button[data-group='1']", " ")
    assert (browser.js(drawn), browser.js(rows)) == (before, 0)


def test_all_groups_can_be_hidden_at_once(opened):
    browser = opened(sample(3))
    shown = "document.querySelectorAll('section [data-group]:not([hidden])').length"
    before = browser.js(shown)
    browser.click("#legend .plain:last-child")
    assert browser.js(shown) == 0
    browser.click("#legend .plain")
    assert browser.js(shown) == before


def test_a_group_stands_out_while_its_name_is_pointed_at(opened):
    browser = opened(sample(3))
    left, top, width, height = browser.place("#legend button[data-group='1']")
    browser.move(left + width / 2, top + height / 2)
    opacity = "+getComputedStyle(document.querySelector('polyline[data-group=\"{}\"]')).opacity"
    assert browser.js(opacity.format(1)) == 1
    assert browser.js(opacity.format(0)) < 0.3
    browser.move(0, 0)
    assert browser.js(opacity.format(0)) == 1


TIP = """(() => {
  const tip = document.querySelector(".tip:not([hidden])");
  return tip && [tip.querySelector("p").textContent, ...[...tip.querySelectorAll("li")].map(
    (one) => [one.querySelector("span").textContent, one.querySelector("b").textContent])];
})()"""


def straight():
    """Lines whose values are known at every place: one that rises, one level, one that ends."""
    lines = ([0, 100], [0, 200]), ([0, 100], [150, 150]), ([0, 40], [7, 7])
    return with_curves(sample(3), *lines)


@pytest.mark.parametrize("width", [390, 1400])
def test_pointer_shows_the_values_there_greatest_first(opened, width):
    browser = opened(straight(), width)
    browser.place("#learning .plot")
    tick = (
        "(() => { const box = [...document.querySelectorAll('#learning .x b')]"
        ".find((one) => one.textContent === '{}').getBoundingClientRect();"
        "return [box.left + box.width / 2, box.top - 60]; })()"
    )
    browser.move(*browser.js(tick.replace("{}", "20 s")))
    rows = [["lr 0.002", "150"], ["lr 0.001", "40"], ["lr 0.003", "7"]]
    assert browser.js(TIP) == ["20 s", *rows]
    browser.move(*browser.js(tick.replace("{}", "80 s")))
    assert browser.js(TIP) == ["80 s", ["lr 0.001", "160"], ["lr 0.002", "150"]]
    inside = "(({left, right}) => left >= 0 && right <= innerWidth)"
    assert browser.js(f"{inside}(document.querySelector('.tip').getBoundingClientRect())")
    browser.move(0, 0)
    assert browser.js(TIP) is None


def test_arrow_keys_move_along_a_curve(opened):
    browser = opened(straight())
    browser.press("#learning .plot", "ArrowLeft")
    assert browser.js(TIP) == ["97.5 s", ["lr 0.001", "195"], ["lr 0.002", "150"]]


def test_table_is_sorted_by_click_and_by_keyboard_with_the_unknown_last(opened):
    made = sample(4)
    speeds = (3000.0, None, 900.0, 12000.0)
    rows = [replace(row, fps=Estimate(fps)) for row, fps in zip(made.rows, speeds, strict=True)]
    browser = opened(replace(made, rows=rows))
    heads = "[...document.querySelectorAll('#results th')]"
    browser.js(f"{heads}.find((one) => one.textContent === 'steps/s').id = 'by'")
    order = "[...document.querySelectorAll('#results tbody tr')].map((one) => +one.dataset.group)"
    browser.click("#by button")
    assert browser.js(order) == [3, 0, 2, 1]
    assert browser.js("document.querySelector('#by').ariaSort") == "descending"
    browser.press("#by button", "Enter")
    assert browser.js(order) == [2, 0, 3, 1]
    assert browser.js("[...document.querySelectorAll('#results [aria-sort]')].length") == 1
