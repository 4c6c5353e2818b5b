"""report.html in a real browser: what a reader sees, and what never happens."""

from __future__ import annotations

import copy
import json
import math
import random
import re

import numpy as np
import pytest
from browser import Browser, found

from paceline.tools.bench.compare.page import page

COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000"),
    *("#882255", "#44AA99"),
)
NAMES = [
    f"{algo} · {way}"
    for way in ("one process", "2 workers", "2 ranks", "compiled", "4 envs", "16 envs", "64 envs")
    for algo in ("PPO", "A2C", "IMPALA", "A3C", "PPO + recurrence", "V-trace")
]


def spread(value, rng, width=0.05):
    low, high = (value * (1 + sign * width * rng.uniform(0.3, 1)) for sign in (-1, 1))
    return {"value": value, "low": low, "high": high}


def curve(rng, end, level, pace, points=200):
    """A learning curve that rises to a level, with noise and a band; unknown at its beginning."""
    x = [end * place / (points - 1) for place in range(points)]
    mean = [20 + (level - 20) / (1 + math.exp(-10 * (one / end - pace))) for one in x]
    y = [min(500.0, one + rng.gauss(0, 0.015 * level)) for one in mean]
    half = [5 + 0.1 * level * math.exp(-((one / end - pace) ** 2) / 0.03) for one in x]
    y[:3] = [None] * 3
    low = [None if one is None else one - wide for one, wide in zip(y, half, strict=True)]
    high = [None if one is None else min(500, one + w) for one, w in zip(y, half, strict=True)]
    return {"x": x, "y": y, "low": low, "high": high}


def run(name, seed, group, rng):
    score, fps = group["score"]["value"], group["fps"]["value"] * rng.uniform(0.95, 1.05)
    return {
        "name": f"runs/{name.replace(' · ', '-')}-{seed}",
        "seed": seed,
        "state": "done",
        "counted": True,
        "score": score * rng.uniform(0.95, 1.02),
        "evaluation": None,
        "fps": fps,
        "time": 60.0,
        "steps": int(60 * fps),
        "time_to": group["time_to"]["value"],
        "steps_to": group["steps_to"]["value"],
    }


def group(name, place, rng, runs=5, seconds=60.0):
    """A group that learns, or one in six that does not."""
    learns = place % 6 != 5
    pace, fps = rng.uniform(0.15, 0.6), rng.uniform(4000, 32000)
    level = rng.uniform(430, 500) if learns else rng.uniform(30, 140)
    reached = runs if level > 478 else runs // 2 if level > 465 else 0
    time_to = pace * seconds * 1.4 if reached else None
    rollout, wait, sync = rng.uniform(0.3, 0.5), rng.uniform(0, 0.15), rng.choice([0, 0.06])
    unknown = {"value": None, "low": None, "high": None}
    made = {
        "name": name,
        "colour": COLOURS[place % len(COLOURS)],
        "dash": place // len(COLOURS) % 4,
        "count": runs,
        "score": spread(level, rng),
        "evaluation": spread(min(500, level * 1.03), rng, 0.03),
        "fps": spread(fps, rng, 0.1),
        "time_to": spread(time_to, rng, 0.3) if reached else unknown,
        "steps_to": spread(time_to * fps, rng, 0.3) if reached else unknown,
        "reached": reached,
        "memory_mb": rng.uniform(250, 700),
        "cpu_percent": rng.uniform(95, 198),
        "startup": rng.uniform(1, 4),
        "phases": {
            "rollout": rollout,
            "wait": wait,
            "sync": sync,
            "other": 0.04,
            "learn": 0.96 - rollout - wait - sync,
        },
        "curves": {
            "time": curve(rng, seconds, level, pace),
            "steps": curve(rng, seconds * fps, level, pace),
        },
    }
    return {**made, "runs": [run(name, seed, made, rng) for seed in range(runs)]}


def pair(groups, a, b, rng):
    difference = groups[b]["score"]["value"] - groups[a]["score"]["value"]
    low, high = difference - rng.uniform(5, 30), difference + rng.uniform(5, 30)
    chance = 1 / (1 + math.exp(-difference / 20))
    better = groups[b if difference > 0 else a]["name"]
    ends = sorted((abs(low), abs(high)))
    return {
        "a": a,
        "b": b,
        "difference": difference,
        "low": low,
        "high": high,
        "p": 0.03,
        "p_adjusted": 0.06,
        "pairing": "paired by seed",
        "improvement": {"value": chance, "low": chance * 0.8, "high": min(1, chance * 1.1)},
        "says": f"{better} is better by {abs(difference):.1f} (95 % interval {ends[0]:.1f} to "
        f"{ends[1]:.1f})",
    }


def sample(count=3, runs=5, seconds=60.0, seed=1, **changes):
    """What a comparison of so many groups says."""
    rng = random.Random(seed)
    groups = [group(name, place, rng, runs, seconds) for place, name in enumerate(NAMES[:count])]
    best = max(range(count), key=lambda one: groups[one]["score"]["value"])
    places = [(a, b) for b in range(count) for a in range(b)]
    return {
        "title": "CartPole-v1: algorithms and ways to run them",
        "subtitle": f"{seconds:g} s each · {runs} seeds · Intel Xeon, 2 CPUs · 2026-11-16",
        "verdict": [
            f"{groups[best]['name']} is the best after {seconds:g} s, at a return of "
            f"{groups[best]['score']['value']:.0f}.",
            "It cannot be told from the second with five seeds; twenty would.",
        ],
        "notes": ["runs/ppo-3 was cut short after 31 s of 60 s and is not counted"],
        "failed": [{"name": "A3C · ranks", "cause": "has no such form: A3C has processes"}],
        "budget": {"axis": "time", "value": seconds, "text": f"{seconds:g} s"},
        "target": {"value": 475, "source": "the environment's own threshold"},
        "groups": groups,
        "pairs": [pair(groups, a, b, rng) for a, b in places],
        "varied": {"algorithm": ["ppo", "a2c"], "learning rate": ["0.0003", "0.001"]},
        "machine": {"CPU": "Intel Xeon @ 2.20GHz", "CPUs": "2", "Paceline": "0.1.0"},
        "command": "paceline compare runs/ppo-* runs/a2c-* --target-return 475",
        "statistics": ["The interquartile mean is the mean of the middle half of the runs."],
        **changes,
    }


UNKNOWN = {"value": None, "low": None, "high": None}
HOSTILE = (
    "<img src=x onerror=window.harmed=1>",
    "</script><script>window.harmed=1</script><!--",
    "\u2028'\"`${harmed=1}{{css}}&amp;\\u003c" + "long" * 60,
)


def changed(content, **changes):
    """The same with other values in every group."""
    made = copy.deepcopy(content)
    for one in made["groups"]:
        one.update(copy.deepcopy(changes))
    return made


def unknown(content):
    """The same, of which nothing at all was measured."""
    nothing = dict.fromkeys(("score", "fps", "time_to", "steps_to"), UNKNOWN)
    none = dict.fromkeys(("evaluation", "memory_mb", "cpu_percent", "startup", "phases"))
    line = {"x": [0, 1, 2], "y": [None] * 3, "low": [None] * 3, "high": [None] * 3}
    made = changed(content, **nothing, **none, reached=0, curves={"time": line, "steps": line})
    for one in made["groups"]:
        one["runs"] = [dict.fromkeys(run) | {"name": "x", "state": "failed"} for run in one["runs"]]
    for one in made["pairs"]:
        one.update(dict.fromkeys(("difference", "low", "high", "p", "p_adjusted", "improvement")))
    return made


def hostile():
    made = sample(3, runs=2, verdict=list(HOSTILE), notes=list(HOSTILE), title=HOSTILE[0])
    made |= {"varied": {HOSTILE[0]: HOSTILE}, "machine": {HOSTILE[1]: HOSTILE[0]}}
    made["failed"] = [{"name": name, "cause": name} for name in HOSTILE]
    for one, name in zip(made["groups"], HOSTILE, strict=True):
        one.update(name=name, colour="red;background:url(http://x.test/)")
        one["runs"][0]["name"] = name
    return made


def losing():
    """Returns below zero, times of hours, and an interval that is much too wide."""
    made = sample(3, seconds=40000.0, target={"value": -150, "source": "given"})
    for one in made["groups"]:
        one["score"] = {"value": -180.0, "low": -4000.0, "high": -100.0}
        one["evaluation"] = {"value": -1800.0, "low": -2150.0, "high": -1490.0}
        for line in one["curves"].values():
            for name in ("y", "low", "high"):
                line[name] = [None if value is None else value - 1200 for value in line[name]]
    return made


CASES = {
    "one run": sample(1, runs=1),
    "two groups": sample(2),
    "twelve groups": sample(12),
    "forty groups": sample(40, runs=2),
    "no target, no pairs": sample(4, target=None, pairs=[], notes=[], failed=[], varied={}),
    "not reached": changed(sample(3), time_to=UNKNOWN, steps_to=UNKNOWN, reached=0),
    "one point": changed(sample(2), curves={"time": {"x": [0.0], "y": [1.0]}, "steps": None}),
    "nothing known": unknown(sample(3)),
    "losing": losing(),
    "hostile": hostile(),
}
WHITE = "rgb(255, 255, 255)"
WRONG = """(() => {
  const wrong = [], charts = document.querySelectorAll(".plot > svg");
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.5
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;
  for (const chart of charts) {
    const box = chart.getBoundingClientRect(), drawn = box.width / chart.viewBox.baseVal.width;
    const texts = [...chart.querySelectorAll("text")].filter((one) => one.textContent);
    const boxes = texts.map((one) => one.getBoundingClientRect());
    texts.forEach((one, place) => {
      const { left, right, top, bottom } = boxes[place];
      const where = chart.ariaLabel.slice(0, 30);
      const says = (what) => wrong.push(`${where}: ${one.textContent} ${what}`);
      if (left < box.left - 1 || right > box.right + 1) says("is beside the chart");
      if (top < box.top - 1 || bottom > box.bottom + 1) says("is above or below the chart");
      if (parseFloat(getComputedStyle(one).fontSize) * drawn < 10.5) says("is too small");
      for (let other = 0; other < place; other += 1)
        if (meet(boxes[place], boxes[other])) says(`is over ${texts[other].textContent}`);
    });
    if (/NaN|Infinity|undefined|null/.test(chart.outerHTML)) wrong.push("not a number");
  }
  const wide = document.documentElement.scrollWidth;
  if (wide > screen.width) wrong.push(`the page is ${wide} wide`); // innerWidth would grow with it
  return wrong;
})()"""
PALE = """(() => {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const seen = (...layers) => {
    for (const colour of layers) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
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
    const one = walk.currentNode.parentElement, look = getComputedStyle(one);
    if (!walk.currentNode.data.trim() || !one.getClientRects().length) continue;
    const inner = one.ownerSVGElement ? look.fill : look.color;
    const layers = one.classList.contains("share")
      ? [getComputedStyle(one.previousSibling).fill] : below(one);
    const both = [seen("white", ...layers), seen("white", ...layers, inner)];
    const contrast = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    count += 1;
    if (contrast < 4.5) pale.push([one.textContent, inner, layers.at(-1)]);
  }
  return { count, pale };
})()"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if found() is None:
        pytest.skip("no Chromium on this machine")
    with Browser(tmp_path_factory.mktemp("browser") / "profile") as browser:
        yield browser


@pytest.fixture
def opened(chromium, tmp_path):
    """Write a page and open it; by the end of a test it has asked for nothing and said nothing."""

    def run(content, width=1400, **options):
        path = tmp_path / "report.html"
        path.write_text(page(content), encoding="utf-8")
        return chromium.open(path, width, **options)

    yield run
    assert chromium.problems == []
    assert chromium.requests == []


def embedded(text):
    """The JSON in a page."""
    return json.loads(re.search(r'id="content">(.*?)</script>', text, re.DOTALL)[1])


# The file.


def test_page_holds_its_content_and_is_small_without_it():
    content = sample(2)
    text = page(content)
    data = embedded(text)
    assert [one["name"] for one in data["groups"]] == NAMES[:2]
    fps = content["groups"][0]["fps"]["value"]
    assert data["groups"][0]["fps"]["value"] == pytest.approx(fps, rel=1e-5)
    assert len(text) - len(json.dumps(data, separators=(",", ":"))) < 60_000
    for sentence in (*content["verdict"], *content["notes"], content["failed"][0]["name"]):
        assert sentence in text


def test_page_has_nothing_to_load():
    text = page(sample(2))
    assert "default-src 'none'" in text
    for found_ in re.findall(r"""https?://[^"']*""", text):
        assert found_.startswith("http://www.w3.org/"), found_  # names of namespaces
    assert not re.search(r"\bsrc=|@import|url\((?!#)|innerHTML|\beval\b|fetch\(", text)
    assert re.findall('href="([^"]*)"', text) == ["data:,"]


def test_hostile_names_are_no_markup_in_the_file():
    text = page(hostile())
    assert text.count("<script") == text.count("</script>") == 6
    assert "<img" not in text
    assert "<!--" not in text
    assert "\u2028" not in re.search("<script.*", text, re.DOTALL)[0]
    assert [one["name"] for one in embedded(text)["groups"]] == list(HOSTILE)


def test_names_of_files_that_are_no_text_can_be_written():
    name = b"runs/\xff".decode("utf-8", "surrogateescape")
    assert page(sample(1, title=name, notes=[name], command=name)).encode("utf-8")


def test_numbers_that_are_not_finite_are_unknown_and_those_of_numpy_are_numbers():
    odd = [math.nan, -math.inf, np.float32(0.5), np.int64(7), np.array([1.0, np.nan])]
    assert embedded(page(sample(1, odd=odd)))["odd"] == [None, None, 0.5, 7, [1.0, None]]


# What is drawn.


@pytest.mark.sampled(3)
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("case", CASES)
def test_every_case_is_drawn_within_its_place(opened, case, width):
    browser = opened(CASES[case], width, mobile=width < 500)
    assert browser.js(WRONG) == []
    expected = 0 if case == "nothing known" else 5
    assert browser.js("document.querySelectorAll('.plot > svg').length") >= expected


@pytest.mark.parametrize("dark", [True, False])
@pytest.mark.parametrize("case", ["twelve groups", "not reached"])
def test_all_text_stands_out_from_its_background(opened, case, dark):
    browser = opened(CASES[case], dark=dark)
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
    assert HOSTILE[0] in browser.js("document.querySelector('#outcome svg').textContent")


def test_a_chart_is_drawn_again_for_another_width(opened):
    browser = opened(sample(2), 1400)
    size = "document.querySelector('.plot > svg').viewBox.baseVal.width"
    wide = browser.js(size)
    browser.view(700)
    assert browser.js(f"new Promise(requestAnimationFrame).then(() => {size})") > wide
    assert browser.js(WRONG) == []


def test_on_paper_all_is_unfolded_and_light(opened):
    browser = opened(sample(3), 688, dark=True)  # A4 without its margins
    browser.print_view()
    browser.js("dispatchEvent(new Event('beforeprint'))")
    assert browser.js("document.querySelectorAll('details:not([open])').length") == 0
    assert browser.js("getComputedStyle(document.body).backgroundColor") == WHITE
    assert browser.js(WRONG) == []
    browser.js("dispatchEvent(new Event('afterprint'))")
    assert browser.js("document.querySelectorAll('details[open]').length") == 0


def test_without_scripts_the_text_is_there(opened, chromium):
    chromium.scripts(False)
    try:
        text = opened(sample(2)).js("document.body.innerText")
    finally:
        chromium.scripts(True)
    assert "is the best after 60 s" in text
    assert "drawn by JavaScript" in text


# What it does.


def test_legend_hides_a_group_everywhere_and_brings_it_back(opened):
    browser = opened(sample(3))
    drawn = "[...document.querySelectorAll('.plot [data-group~=\"1\"]')].length"
    rows = "[...document.querySelectorAll('tr, details')].filter((one) => one.hidden).length"
    figures = "[...document.querySelectorAll('.plot > svg')].length"
    before, charts = browser.js(drawn), browser.js(figures)
    assert before >= charts == 10
    browser.click("#legend button[data-group='1']")
    assert browser.js("document.querySelector('#legend [data-group=\"1\"]').ariaPressed") == "false"
    assert browser.js(drawn) == 0
    assert browser.js(figures) == charts
    assert browser.js(rows) == 4  # of groups one, of runs one, of comparisons two
    browser.press("#legend button[data-group='1']", " ")
    assert (browser.js(drawn), browser.js(rows)) == (before, 0)


def test_all_groups_can_be_hidden_at_once(opened):
    browser = opened(sample(3))
    browser.click("#legend .plain:last-child")
    assert browser.js("document.querySelectorAll('.plot > svg').length") == 0
    assert browser.js("document.querySelector('.plot').textContent") == "No group is shown."
    browser.click("#legend .plain")
    assert browser.js("document.querySelectorAll('.plot > svg').length") == 10


def test_a_group_stands_out_while_its_name_is_pointed_at(opened):
    browser = opened(sample(3))
    left, top, width, height = browser.place("#legend button[data-group='1']")
    browser.move(left + width / 2, top + height / 2)
    opacity = "+getComputedStyle(document.querySelector('.line[data-group=\"{}\"]')).opacity"
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
    content = sample(3)
    lines = ([0, 100], [0, 200]), ([0, 100], [150, 150]), ([0, 40], [7, 7])
    for one, (x, y) in zip(content["groups"], lines, strict=True):
        one["curves"] = {"time": {"x": x, "y": y, "low": y, "high": y}, "steps": None}
    return content


@pytest.mark.parametrize("width", [390, 1400])
def test_pointer_shows_the_values_there_greatest_first(opened, width):
    browser = opened(straight(), width)
    browser.place("#learning .plot > svg")
    tick = (
        "(() => { const box = [...document.querySelectorAll('#learning .tick.x')]"
        ".find((one) => one.textContent === '{}').getBoundingClientRect();"
        "return [box.left + box.width / 2, box.top - 60]; })()"
    )
    browser.move(*browser.js(tick.replace("{}", "20")))
    rows = [[NAMES[1], "150"], [NAMES[0], "40.0"], [NAMES[2], "7.00"]]
    assert browser.js(TIP) == ["20.0\u00a0s", *rows]
    browser.move(*browser.js(tick.replace("{}", "80")))
    assert browser.js(TIP) == ["80.0\u00a0s", [NAMES[0], "160"], [NAMES[1], "150"]]
    inside = "(({left, right}) => left >= 0 && right <= innerWidth)"
    assert browser.js(f"{inside}(document.querySelector('.tip').getBoundingClientRect())")
    browser.move(0, 0)
    assert browser.js(TIP) is None


def test_arrow_keys_move_along_a_curve(opened):
    browser = opened(straight())
    browser.press("#learning .plot > svg", "ArrowLeft")
    assert browser.js(TIP) == ["97.5\u00a0s", [NAMES[0], "195"], [NAMES[1], "150"]]


def test_table_is_sorted_by_click_and_by_keyboard_with_the_unknown_last(opened):
    content = sample(4)
    for one, fps in zip(content["groups"], (3000.0, None, 900.0, 12000.0), strict=True):
        one["fps"] = {"value": fps, "low": None, "high": None}
    browser = opened(content)
    browser.js("document.querySelectorAll('#results th')[4].id = 'by'")
    order = "[...document.querySelectorAll('#results tbody tr')].map((one) => +one.dataset.group)"
    browser.click("#by button")
    assert browser.js(order) == [3, 0, 2, 1]
    assert browser.js("document.querySelector('#by').ariaSort") == "descending"
    browser.press("#by button", "Enter")
    assert browser.js(order) == [2, 0, 3, 1]
    assert browser.js("[...document.querySelectorAll('#results [aria-sort]')].length") == 1


PAIRS = """[...document.querySelector("#comparisons svg").querySelectorAll("[data-group]")].map(
  (one) => [...one.querySelectorAll(".row")].map((text) => text.firstChild.textContent))"""


def test_of_few_pairs_all_are_drawn_and_the_better_group_is_named_first(opened):
    content = sample(2)
    worse, better = sorted(content["groups"], key=lambda one: one["score"]["value"])
    expected = abs(content["pairs"][0]["difference"])
    named = f"{better['name']} over {worse['name']}"
    assert opened(content).js(PAIRS) == [[named, f"{expected:.1f}"]]


def test_a_pair_without_an_interval_is_pale(opened):
    content = sample(3)
    nothing = {"low": None, "high": None}
    for one in content["pairs"]:
        one.update(nothing, improvement={"value": 1.0, **nothing})
    pale = "document.querySelectorAll('#comparisons svg .faint').length"
    assert opened(content).js(pale) == 6


def test_of_many_pairs_those_of_the_best_group_are_drawn(opened):
    content = sample(12)
    best = max(content["groups"], key=lambda one: one["score"]["value"])["name"]
    browser = opened(content)
    named = {name for name, _ in browser.js(PAIRS)}
    assert named == {f"over {name}" for name in NAMES[:12] if name != best}
    assert best in browser.js("document.querySelector('#comparisons figcaption').textContent")


NUMBERS = {
    "number(0.01234)": "0.0123",
    "number(487.3)": "487",
    "number(-12.34)": "−12.3",
    "number(1234.5)": "1,235",
    "number(31234)": "31.2k",
    "number(999999)": "1.00M",
    "number(0)": "0",
    "number(null)": "–",
    "number(1.5, 120)": "2",
    "duration(12.34)": "12.3\u00a0s",
    "duration(600)": "10.0\u00a0min",
    "duration(36000)": "10.0\u00a0h",
    "interval({low: -4.53, high: 25.1})": "−4.5 to 25.1",
    "interval({low: 61, high: 240}, duration)": "1.02 to 4.00",
    "probability(0.0001)": "< 0.001",
    "axis([0, 1.25e6], 400).texts.join()": "0,0.2M,0.4M,0.6M,0.8M,1.0M,1.2M",
    "axis([0, 3600], 300, {unit: 60}).texts.join()": "0,10,20,30,40,50,60",
}


def test_numbers_are_written_as_a_reader_wants_them(opened):
    browser = opened(sample(1))
    assert {one: browser.js(one) for one in NUMBERS} == NUMBERS


TOUCHING = """(() => {
  const wrong = [];
  for (const low of [-12345, 0, 0.001, 1e6])
    for (const span of [0.02, 7, 1234, 5e6])
      for (const room of [120, 260, 500]) {
        const { at, texts } = axis([low, low + span], room);
        const gaps = at.slice(1).map((one, place) => ((one - at[place]) / span) * room
          - (measure(texts[place]) + measure(texts[place + 1])) / 2);
        if (!at.length || Math.min(...gaps) < 4 || new Set(texts).size < texts.length)
          wrong.push([low, span, room, texts]);
      }
  return wrong;
})()"""


def test_ticks_never_touch_and_never_say_the_same(opened):
    assert opened(sample(1)).js(TOUCHING) == []
