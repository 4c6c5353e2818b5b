"""Findings of `check` and `doctor`: rules with facts, order, and the three layouts."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from paceline.config.text import listed, several
from paceline.tools.findings import GB, MB, STYLES, Bytes, Finding, Report, Rule, Rules, ordered

RULES = Rules(
    {
        "nan": Rule("wrong", "reward", "it is {value}", "it spoils", "bound it by {bound:,}"),
        "files": Rule("problem", "files", "only {free} are free", fix="ulimit"),
        "large": Rule("note", "observation", "it is large", "it is slow", "divide it"),
        "fine": Rule("ok", "ends", "all is well", fix="add more"),
    }
)
WRONG = RULES.found("nan", value="NaN", bound=1000)
PROBLEM = RULES.found("files", free=Bytes(64 * MB))
NOTE, OK = RULES.found("large"), RULES.found("fine")


def report(*findings, levels=("wrong", "risky", "note")):
    return Report({"env": "My-v0", "speed": "fast"}, list(findings), levels, {"env": {"id": "My"}})


def test_a_finding_is_its_rule_with_facts():
    assert (WRONG.level, WRONG.topic, WRONG.code) == ("wrong", "reward", "nan")
    assert WRONG.facts == {"value": "NaN", "bound": 1000}
    assert (WRONG.text, WRONG.fix) == ("it is NaN", "bound it by 1,000")
    assert RULES.found("nan", "note", value=0, bound=1).level == "note"


def test_the_worst_comes_first_then_by_topic():
    topics = ("reward", "ends")
    findings = [Finding(level, topic, "", "") for level in STYLES for topic in topics]
    assert ordered(random.sample(findings, len(findings)), topics) == findings


@pytest.mark.parametrize(
    ("findings", "summary", "failed"),
    [
        ([], "nothing to fix", False),
        ([NOTE, OK], "nothing to fix, 1 note", False),
        ([dataclasses.replace(WRONG, level="risky")], "1 risky", True),
        ([WRONG, WRONG, NOTE, NOTE], "2 wrong, 2 notes", True),
    ],
)
def test_only_what_is_worse_than_a_note_has_to_be_fixed(findings, summary, failed):
    shown = report(*findings)
    assert (shown.summary, shown.failed) == (summary, failed)


def test_problems_are_counted():
    shown = report(PROBLEM, PROBLEM, NOTE, levels=("problem", "note"))
    assert shown.summary == "2 problems, 1 note"
    content = json.loads(shown.as_json())
    assert (content["problems"], content["notes"]) == (2, 1)


def test_json_holds_the_findings_with_their_facts_and_counts():
    content = json.loads(report(WRONG, NOTE, OK).as_json())
    assert content.keys() == {"env", "findings", "wrong", "risky", "notes"}
    assert content["findings"] == [dataclasses.asdict(f) for f in (WRONG, NOTE, OK)]
    assert (content["wrong"], content["risky"], content["notes"]) == (1, 0, 1)


def test_plain_text_has_a_line_for_each_finding_and_its_remarks():
    lines = [line.split(maxsplit=2) for line in report(WRONG, NOTE, OK).as_text().splitlines()]
    assert lines[0] == ["env", "My-v0"]
    assert lines[3] == ["wrong", "reward", WRONG.text]
    assert [line[0] for line in lines[4:6]] == ["why:", "fix:"]
    assert lines[-4] == ["ok", "ends", OK.text]
    assert lines[-3] == ["add", "more"]  # nothing has to be fixed
    assert " ".join(lines[-1]) == "1 wrong, 1 note"


def test_a_terminal_gets_every_sentence_whole_however_narrow_it_is(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    odd = RULES.found("nan", value="not " * 20 + "/a/[bold]odd[/bold]/place", bound=1)
    report(odd, NOTE).print_rich()
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 40
    words = " ".join(shown.split())
    for text in ("[bold]odd[/bold]", "why: it spoils", "fix: bound it by 1", "1 wrong, 1 note"):
        assert text in words


def test_numbers_are_written_for_readers():
    sizes = [f"{Bytes(n)}" for n in (64 * MB, 1.5 * GB, 250 * GB)]
    assert sizes == ["64 MB", "1.5 GB", "250 GB"]
    assert [several(n, "note") for n in (0, 1, 2)] == ["no notes", "1 note", "2 notes"]
    assert [listed(list(names)) for names in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
