"""One checkpoint for all ranks: what each puts in, under which name, and what it gets back."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.storage.arrays import joined, own, taken

COLUMNS = 4
"""Of one rank."""
PER_COLUMN = {"return.running"}


def learner_of(rank, running=True):
    """Weights are the same everywhere; running returns are each rank's own."""
    state = {"storage": np.arange(5.0), "counts": np.array([7, 28]), "obs.mean": np.ones(3)}
    if running:
        columns = np.arange(rank * COLUMNS, (rank + 1) * COLUMNS, dtype=np.float64)
        state |= {"return.running": columns, "return.count": np.array(9.0)}
    return state


def sampler_of(rank, blocks):
    """A block's arrays say which block of which rank they are from."""
    state = {}
    for block in range(blocks):
        state[f"{block}.obs"] = np.full((2, 3), 100 * rank + block)
        state[f"{block}.row"] = np.array(100 * rank + block)
        state[f"{block}.episodes.total"] = np.full(2, 0.5 + 100 * rank + block)
    return state


def whole_of(ranks, blocks, running=True):
    return joined(
        [own(learner_of(r, running), sampler_of(r, blocks), r, PER_COLUMN) for r in range(ranks)]
    )


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("running", [True, False], ids=["returns normalised", "plain"])
@pytest.mark.parametrize("blocks", [1, 2, 3, 12])
@pytest.mark.parametrize("ranks", [1, 2, 3, 11])
def test_every_rank_gets_back_what_it_put_in(ranks, blocks, running):
    whole = whole_of(ranks, blocks, running)
    for rank in range(ranks):
        learner, sampler = taken(whole, rank, ranks, PER_COLUMN)
        assert_equal(learner, learner_of(rank, running))
        assert_equal(sampler, sampler_of(rank, blocks))


@pytest.mark.parametrize("blocks", [1, 2])
def test_joining_what_was_taken_gives_the_same_checkpoint(blocks):
    whole = whole_of(3, blocks)
    again = joined([own(*taken(whole, rank, 3, PER_COLUMN), rank, PER_COLUMN) for rank in range(3)])
    assert_equal(again, whole)


def test_blocks_are_numbered_over_all_ranks():
    whole = whole_of(ranks=2, blocks=2)
    assert sorted(whole) == [
        "learner.counts",
        "learner.obs.mean",
        "learner.return.count",
        "learner.return.running",
        "learner.storage",
        *(f"sampler.{n}.{name}" for n in range(4) for name in ("episodes.total", "obs", "row")),
    ]
    assert [int(whole[f"sampler.{n}.row"]) for n in range(4)] == [0, 1, 100, 101]


def test_a_checkpoint_is_that_of_one_process_with_all_blocks_and_columns():
    """Which is why a run's columns can be read off it without knowing of ranks."""
    blocks = {}
    for rank in range(3):
        for name, array in sampler_of(rank, 2).items():
            number, _, rest = name.partition(".")
            blocks[f"{2 * rank + int(number)}.{rest}"] = array
    learner = learner_of(0) | {"return.running": np.arange(3.0 * COLUMNS)}
    assert_equal(whole_of(3, 2), joined([own(learner, blocks, 0, PER_COLUMN)]))


def test_only_rank_0_contributes_what_all_have_in_common():
    """Weights travel once, however many ranks there are."""
    assert sorted(own(learner_of(1), sampler_of(1, 1), 1, PER_COLUMN)) == [
        "learner.return.running",
        "sampler.0.episodes.total",
        "sampler.0.obs",
        "sampler.0.row",
    ]
    assert "learner.storage" in own(learner_of(0), {}, 0, PER_COLUMN)


def test_a_process_that_only_watches_has_no_blocks():
    whole = joined([own(learner_of(0, running=False), {}, 0, PER_COLUMN)])
    learner, sampler = taken(whole, 0, 1, PER_COLUMN)
    assert_equal(learner, learner_of(0, running=False))
    assert sampler == {}


def test_a_checkpoint_of_other_columns_is_refused():
    """Three ranks can't share what two have left."""
    with pytest.raises(ValueError, match="equal division"):
        taken(whole_of(ranks=2, blocks=1), 0, 3, PER_COLUMN)
