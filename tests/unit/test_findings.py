"""Findings of `check` and `doctor`: rules with facts, order, and the three layouts."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path

import pytest
import yaml

from paceline.config.text import listed, several
from paceline.tools import findings
from paceline.tools.findings import GB, MB, STYLES, Bytes, Finding, Report, Rules

OWN_RULES = """
reward:
  nan:
    wrong: it is {value}
    why: it spoils
    fix: bound it by {bound:,}
files:
  files:
    problem: only {free} are free
    fix: ulimit
observation:
  large:
    note: it is large
    why: it is slow
    fix: divide it
  far:
    risky: it is far
ends:
  fine:
    ok: all is well
    fix: add more
"""


@pytest.fixture
def rules(tmp_path):
    (tmp_path / "rules.yaml").write_text(OWN_RULES)
    return Rules.read(tmp_path / "rules.yaml")


@pytest.fixture
def report(rules):
    def make(*codes):
        facts = {"nan": {"value": "NaN", "bound": 1000}, "files": {"free": Bytes(64 * MB)}}
        found = [rules.found(code, **facts.get(code, {})) for code in codes]
        levels = ("wrong", "problem", "risky", "note")
        return Report({"env": "My-v0", "speed": "fast"}, found, levels, {"env": {"id": "My"}})

    return make


@pytest.mark.parametrize("tool", ["check", "doctor"])
def test_every_rule_has_one_level_and_known_texts_and_is_used(tool):
    folder = Path(findings.__file__).with_name(tool)
    source = "".join(file.read_text() for file in folder.glob("*.py"))
    made = re.compile(r"disk|temporary|make|reset|close")  # codes put together from a topic
    for codes in yaml.safe_load((folder / "rules.yaml").read_text()).values():
        for code, texts in codes.items():
            assert len(texts.keys() & STYLES.keys()) == 1, code
            assert texts.keys() <= {*STYLES, "why", "fix"}, code
            assert all(isinstance(text, str) and text for text in texts.values()), code
            assert f'"{code}"' in source or made.match(code) or code in ("suites", "tools"), code


def test_a_finding_is_its_rule_with_facts(rules):
    found = rules.found("nan", value="NaN", bound=1000)
    assert (found.level, found.topic, found.code) == ("wrong", "reward", "nan")
    assert found.facts == {"value": "NaN", "bound": 1000}
    assert (found.text, found.fix) == ("it is NaN", "bound it by 1,000")
    assert rules.found("nan", "note", value=0, bound=1).level == "note"


def test_the_worst_comes_first_then_by_topic(rules):
    found = [Finding(level, topic, "", "") for level in STYLES for topic in ("reward", "ends")]
    assert rules.ordered(random.sample(found, len(found))) == found


@pytest.mark.parametrize(
    ("codes", "summary", "failed"),
    [
        ((), "nothing to fix", False),
        (("large", "fine"), "nothing to fix, 1 note", False),
        (("nan", "nan", "large", "large"), "2 wrong, 2 notes", True),
        (("files", "files"), "2 problems", True),
        (("far",), "1 risky", True),
    ],
)
def test_only_what_is_worse_than_a_note_has_to_be_fixed(report, codes, summary, failed):
    shown = report(*codes)
    assert (shown.summary, shown.failed) == (summary, failed)


def test_plain_text_has_a_line_for_each_finding_and_its_remarks(report):
    shown = report("nan", "large", "fine").as_text()
    lines = [line.split(maxsplit=2) for line in shown.splitlines()]
    assert lines[0] == ["env", "My-v0"]
    assert lines[3] == ["wrong", "reward", "it is NaN"]
    assert [line[0] for line in lines[4:6]] == ["why:", "fix:"]
    assert lines[-4] == ["ok", "ends", "all is well"]
    assert lines[-3] == ["add", "more"]  # nothing has to be fixed
    assert " ".join(lines[-1]) == "1 wrong, 1 note"


def test_a_terminal_gets_colors_and_every_sentence_whole_however_narrow_it_is(rules, report):
    odd = rules.found("nan", value="not " * 20 + "/a/[bold]odd[/bold]/place", bound=1)
    shown = dataclasses.replace(report("large"), findings=[odd, *report("large").findings])
    colored = shown.as_text(width=40)
    assert "\x1b[1;31mwrong\x1b[0m" in colored
    bare = re.sub(r"\x1b\[[\d;]*m", "", colored)
    assert max(map(len, bare.splitlines())) <= 40
    letters = "".join(bare.split())  # wherever lines were broken
    for text in (odd.text, odd.why, odd.fix, "1 wrong, 1 note"):
        assert "".join(text.split()) in letters


def test_a_terminal_that_wants_no_colors_gets_none(report, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in report("nan").as_text(width=80)


def test_numbers_are_written_for_readers():
    sizes = [f"{Bytes(n)}" for n in (64 * MB, 1.5 * GB, 250 * GB)]
    assert sizes == ["64 MB", "1.5 GB", "250 GB"]
    assert [several(n, "note") for n in (0, 1, 2)] == ["no notes", "1 note", "2 notes"]
    assert [listed(list(names)) for names in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
