"""Memory that a run does not get: a sentence on what to lower, and no traceback."""

from __future__ import annotations

import resource

import pytest

MOST = 4 * 2**30
"""Bytes of addresses, of which torch takes one and a half."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "options",
    [
        ("--hidden", "65536,65536"),
        ("--num-envs", 1, "--rollout-steps", 10**8, "--minibatches", 1),
    ],
    ids=["torch", "numpy"],
)
def test_a_run_that_gets_no_memory_says_what_to_lower(shell, options):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (MOST, MOST))

    short = ("--total-iters", 1, "--compile", "off", "--track", "none", "--output-dir", "run")
    ended = shell("train", *short, *options, preexec_fn=limit)
    assert ended.code == 3, ended
    assert "Traceback" not in ended.err
    for word in ("memory ran out", "--num-envs", "--rollout-steps", "--hidden"):
        assert word in ended.err
