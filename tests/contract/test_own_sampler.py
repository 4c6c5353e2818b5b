"""A sampler of one's own, `--sampler module:Class`: the columns of a run in two blocks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest
from sampling import turns
from saved_runs import assert_same, small_config

import paceline
from paceline.run.build import build
from paceline.samplers.serial import make_serial

pytestmark = pytest.mark.timeout(60)


class TwoBlocks:
    """Acts for one half of the columns after the other, as two workers would."""

    runs_ahead: ClassVar[bool] = False

    @staticmethod
    def refuse(config):
        if config.num_envs % 2:
            raise paceline.BadInput(
                f"two blocks need an even num_envs, and it is {config.num_envs}"
            )

    @staticmethod
    def make(spec, config):
        return make_serial(replace(spec, workers=2))


config_of = partial(small_config, rollout_steps=128, hidden=None)


@pytest.mark.parametrize("sampler", ["test_own_sampler:TwoBlocks", TwoBlocks])
def test_it_samples_what_two_workers_do(sampler):
    with (
        build(config_of(sampler=sampler)) as own,
        build(config_of(num_workers=2)) as workers,
    ):
        for (ours, _), (theirs, _) in zip(turns(own, 3), turns(workers, 3), strict=True):
            assert_same(ours.arrays(), theirs.arrays())


def test_its_refusals_are_sentences():
    with pytest.raises(paceline.BadInput, match="an even num_envs, and it is 3"):
        config_of(sampler="test_own_sampler:TwoBlocks", num_envs=3)
