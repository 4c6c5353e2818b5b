"""One checkpoint for all ranks: what each contributes, names of arrays, what each gets back."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.storage.checkpoint import join_ranks, rank_arrays, split_rank

COLUMNS = 4
"""Per rank."""
PER_COLUMN = {"return.running"}


def learner_state(rank, running=True):
    """Weights are the same on all ranks; running returns are per column."""
    state = {"storage": np.arange(5.0), "counts": np.array([7, 28]), "obs.mean": np.ones(3)}
    if running:
        columns = np.arange(rank * COLUMNS, (rank + 1) * COLUMNS, dtype=np.float64)
        state |= {"return.running": columns, "return.count": np.array(9.0)}
    return state


def sampler_state(rank, blocks, first=0):
    """Each array holds a number that tells rank and block."""
    state = {}
    for block in range(blocks):
        number = 100 * rank + block
        state[f"{first + block}.obs"] = np.full((2, 3), number)
        state[f"{first + block}.row"] = np.array(number)
        state[f"{first + block}.episodes.total"] = np.full(2, 0.5 + number)
    return state


def contribution(rank, blocks, running=True):
    states = learner_state(rank, running), sampler_state(rank, blocks)
    return rank_arrays(*states, rank, PER_COLUMN)


def joined(ranks, blocks, running=True):
    return join_ranks([contribution(rank, blocks, running) for rank in range(ranks)])


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("running", [True, False], ids=["returns normalized", "plain"])
@pytest.mark.parametrize("blocks", [0, 1, 2, 3, 12])
@pytest.mark.parametrize("ranks", [1, 2, 3, 11])
def test_every_rank_gets_back_its_own_state(ranks, blocks, running):
    whole = joined(ranks, blocks, running)
    for rank in range(ranks):
        learner, sampler = split_rank(whole, rank, ranks, PER_COLUMN)
        assert_equal(learner, learner_state(rank, running))
        assert_equal(sampler, sampler_state(rank, blocks))


def test_a_checkpoint_of_ranks_equals_that_of_one_process_with_all_blocks_and_columns():
    learner = learner_state(0) | {"return.running": np.arange(3.0 * COLUMNS)}
    blocks = {
        name: array
        for rank in range(3)
        for name, array in sampler_state(rank, 2, first=2 * rank).items()
    }
    assert_equal(joined(3, 2), rank_arrays(learner, blocks, 0, PER_COLUMN))


def test_names_of_arrays_are_those_of_the_file_format():
    assert sorted(joined(ranks=2, blocks=2)) == [
        "learner.counts",
        "learner.obs.mean",
        "learner.return.count",
        "learner.return.running",
        "learner.storage",
        *(f"sampler.{n}.{name}" for n in range(4) for name in ("episodes.total", "obs", "row")),
    ]


def test_only_rank_0_contributes_common_arrays():
    """Weights are sent once, however many ranks there are."""
    assert sorted(contribution(rank=1, blocks=1)) == [
        "learner.return.running",
        "sampler.0.episodes.total",
        "sampler.0.obs",
        "sampler.0.row",
    ]
    assert "learner.storage" in contribution(rank=0, blocks=1)


def test_columns_that_do_not_divide_among_the_ranks_are_refused():
    with pytest.raises(ValueError, match="equal division"):
        split_rank(joined(ranks=2, blocks=1), 0, 3, PER_COLUMN)
