"""Minibatches: orders of rows, and pieces of them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.learning.batch import Rows
from paceline.learning.descent import permutation


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**31 - 1),
    steps=st.integers(1, 12),
    width=st.integers(1, 4),
    blocks=st.integers(1, 4),
    parts=st.sampled_from([1, 2, 3, 4]),
)
def test_every_epoch_uses_every_row_exactly_once(seed, steps, width, blocks, parts):
    steps *= parts
    columns = width * blocks
    for epoch in range(3):
        order = permutation(seed, 5, epoch, steps, columns, blocks, parts)
        assert sorted(order.tolist()) == list(range(steps * columns))


def test_orders_differ_between_epochs_iterations_and_seeds_and_repeat_otherwise():
    orders = [
        permutation(*key, 16, 4, 1, 1) for key in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
    ]
    for one, other in pairwise(orders):
        assert (one != other).any()
    np.testing.assert_array_equal(orders[0], permutation(0, 0, 0, 16, 4, 1, 1))


@pytest.mark.parametrize("blocks", [2, 4])
def test_blocks_of_columns_give_the_union_of_what_each_gives_alone(blocks):
    """One process with W blocks must learn from the minibatches of W processes of one block:
    process w owns columns w·B/W …, and keys its shuffle by its own number."""
    key, steps, columns, parts = (3, 7, 1), 12, 8, 4
    width = columns // blocks
    together = permutation(*key, steps, columns, blocks, parts).reshape(parts, -1)
    alone = [permutation(*key, steps, width, 1, parts, w).reshape(parts, -1) for w in range(blocks)]
    for part, minibatch in enumerate(together):
        union = [
            row // width * columns + w * width + row % width
            for w, orders in enumerate(alone)
            for row in orders[part].tolist()
        ]
        assert sorted(minibatch.tolist()) == sorted(union)


def numbered_rows(count):
    """Rows whose every field says which row it is."""
    number = torch.arange(count, dtype=torch.float32)
    column = number.unsqueeze(-1)
    return Rows((column,), number.long(), number, number, column, column, number)


def test_taken_rows_stay_together_in_all_their_fields():
    order = torch.tensor([4, 0, 3])
    for tensor in numbered_rows(6).take(order).tensors():
        assert tensor.flatten().tolist() == [4, 0, 3]


def test_split_gives_consecutive_pieces_that_share_memory_with_the_whole():
    rows = numbered_rows(6)
    pieces = list(rows.split(2))
    assert [piece.advantage.tolist() for piece in pieces] == [[0, 1], [2, 3], [4, 5]]
    pieces[1].advantage.fill_(-1)
    assert rows.advantage.tolist() == [0, 1, -1, -1, 4, 5]
