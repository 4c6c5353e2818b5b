"""The tables of docs/figures.md say what the result files say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EMPTY = "# A\n<!-- speed -->\n<!-- /speed -->\nbetween\n<!-- learning --><!-- /learning -->\nend"


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ratio(*rounds):
    ordered = sorted(rounds)
    middle = ordered[len(ordered) // 2]
    return {"median": middle, "min": ordered[0], "max": ordered[-1], "rounds": list(rounds)}


PEERS = {
    "cases": {
        "f": {
            "title": "PPO on LunarLander-v3, 16 envs × 128",
            "peers": {"sb3": "Stable-Baselines3", "textbook": "the textbook loop"},
            "rounds": 3,
            "rates": {"ours": [3000, 1000, 2000], "sb3": [500.4] * 3, "textbook": [800] * 3},
            "ratios": {"sb3": ratio(6.0, 2.0, 4.0), "textbook": ratio(3.75, 1.25, 2.5)},
            "threads": {"ours": 1, "sb3": 1, "textbook": 1},
            "versions": {
                "ours": {"torch": "9.1", "paceline": "0.1"},
                "sb3": {"torch": "9.1", "stable-baselines3": "8.2"},
                "textbook": {"torch": "9.1"},
            },
            "cpu": "Some CPU",
            "cpus": 2,
        }
    }
}
TEXTBOOK = {
    "options": {"env_id": "CartPole-v1", "num_envs": 8, "steps": 128, "rounds": 3, "seconds": 2.0},
    "rates": {"textbook": [1000] * 3, "eager": [2000] * 3, "compiled": [12345] * 3},
    "ratios": {"eager": ratio(2.0), "compiled": ratio(12.345)},
}
LEARNING = {
    "options": {"algo": "a2c", "env_id": "CartPole-v1", "seeds": 2, "pin": None, "sampled": True},
    "runs": [
        {"seed": 0, "mean": 500.0, "steps": 500018, "seconds": 1.0},
        {"seed": 1, "mean": 481.25, "steps": 500002, "seconds": 1.0},
    ],
}
FILES = {
    "peers.json": PEERS,
    "ppo_speed-CartPole-v1-8.json": TEXTBOOK,
    "learning-CartPole-v1-a2c.json": LEARNING,
}


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture
def page(tmp_path):
    file = tmp_path / "page.md"
    file.write_text(EMPTY)
    return file


def test_a_peer_gets_a_row_with_ratio_spread_both_rates_and_the_command(tables, results):
    assert (
        "| PPO on LunarLander-v3, 16 envs × 128 | Stable-Baselines3 | 4.00× (2.00 to 6.00) "
        "| 2,000 | 500 | `python benchmarks/peers/run.py --cases f --rounds 3` |"
    ) in tables.speed(results).splitlines()


def test_every_peer_of_a_case_and_every_way_of_ppo_speed_has_its_row(tables, results):
    lines = tables.speed(results).splitlines()
    assert sum("LunarLander-v3" in line for line in lines) == 2
    assert [line for line in lines if "CartPole-v1" in line and "compiled" in line] == [
        "| PPO on CartPole-v1, 8 envs × 128, 4 epochs × 4 minibatches, compiled "
        "| the textbook loop | 12.35× (12.35 to 12.35) | 12,345 | 1,000 "
        "| `python benchmarks/ppo_speed.py --env-id CartPole-v1 --num-envs 8 --steps 128 "
        "--rounds 3 --seconds 2.0` |"
    ]


def test_the_speed_table_says_on_what_it_was_measured(tables, results):
    assert tables.speed(results).splitlines()[-1] == (
        "Peers: median (smallest to largest) of interleaved rounds on Some CPU, 2 CPUs; "
        "1 thread a side; torch 9.1, paceline 0.1, stable-baselines3 8.2."
    )


def test_the_learning_table_shows_every_seed(tables, results):
    assert tables.learning(results).splitlines() == [
        "| environment | algorithm | steps | seeds | mean | each seed | command |",
        "|---|---|---|---|---|---|---|",
        "| CartPole-v1 | a2c | 500,002 to 500,018 | 0 1 | 490.6 | 500.0 481.2 "
        "| `python benchmarks/learning.py --algo a2c --env-id CartPole-v1 --seeds 2 --sampled` |",
    ]


def test_only_what_is_between_the_markers_changes(tables, results, page):
    assert tables.main([str(page), "--results", str(results)]) == 0
    text = page.read_text()
    assert text.startswith("# A\n<!-- speed -->\n| setting |")
    assert "\n<!-- /speed -->\nbetween\n<!-- learning -->\n| environment |" in text
    assert text.endswith("|\n<!-- /learning -->\nend")


def test_check_finds_a_stale_file_and_leaves_it_alone(tables, results, page, capsys):
    arguments = [str(page), "--results", str(results)]
    assert tables.main([*arguments, "--check"]) == 1
    assert "is stale" in capsys.readouterr().err
    assert page.read_text() == EMPTY
    tables.main(arguments)
    assert tables.main([*arguments, "--check"]) == 0
    (results / "learning-CartPole-v1-a2c.json").write_text(
        json.dumps(LEARNING | {"runs": LEARNING["runs"][:1]})
    )
    assert tables.main([*arguments, "--check"]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        EMPTY.replace("<!-- /speed -->", ""),
        EMPTY.replace("<!-- learning -->", ""),
        EMPTY + EMPTY,
        EMPTY.replace("<!-- /speed -->", "").replace("# A", "<!-- /speed -->"),
    ],
)
def test_missing_markers_are_refused_in_a_sentence(tables, results, page, capsys, text):
    page.write_text(text)
    assert tables.main([str(page), "--results", str(results)]) == 2
    assert "it needs <!-- " in capsys.readouterr().err
    assert page.read_text() == text


def test_results_that_are_missing_or_broken_are_refused_in_a_sentence(
    tables, results, page, capsys
):
    arguments = [str(page), "--results", str(results)]
    (results / "peers.json").write_text("{")
    assert tables.main(arguments) == 2
    assert "peers.json is not JSON" in capsys.readouterr().err
    for name in FILES:
        (results / name).unlink()
    assert tables.main(arguments) == 2
    assert "has no peers.json" in capsys.readouterr().err
    assert page.read_text() == EMPTY


def test_the_page_of_figures_is_not_stale(tables):
    assert tables.main(["--check"]) == 0
