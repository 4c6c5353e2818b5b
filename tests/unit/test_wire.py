"""What ranks send each other is plain data: it comes out as it went in, and executes nothing."""

from __future__ import annotations

import os
import pickle
import struct

import numpy as np
import pytest
from safetensors import SafetensorError

from paceline.distributed.wire import decode, encode


@pytest.mark.parametrize(
    "item",
    [None, True, -3, 2**60, 0.1, float("inf"), "ä\n", [1, [2.5, None]], {"a": {"b": []}}],
    ids=repr,
)
def test_plain_data_comes_out_as_it_went_in(item):
    assert decode(encode(item)) == item


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u1", "?", "i4", "f2", "u4"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_arrays_keep_their_bytes_shape_and_type(dtype, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    found = decode(encode({"weights": {"w": array}, "also": [array.T]}))
    for sent, got in ((array, found["weights"]["w"]), (array.T, found["also"][0])):
        assert (got.dtype, got.shape, got.tobytes()) == (sent.dtype, sent.shape, sent.tobytes())


def test_numbers_of_numpy_become_plain_ones():
    assert decode(encode([np.float32(0.5), np.int64(3), np.bool_(True)])) == [0.5, 3, True]


def test_what_is_not_plain_data_is_not_sent():
    with pytest.raises(TypeError, match="object is not plain data"):
        encode([object()])


class Planted:
    def __reduce__(self):
        return os.mkdir, ("planted",)


def test_a_planted_pickle_is_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planted = pickle.dumps(Planted())
    for data in (planted, encode([1]) + planted, encode(np.zeros(2))[:-16] + planted):
        with pytest.raises((ValueError, struct.error, SafetensorError)):
            decode(data)
    assert not list(tmp_path.iterdir())
