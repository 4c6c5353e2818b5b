"""What `import paceline` offers: these names, all of them, and no other."""

from __future__ import annotations

import inspect

import pytest

import paceline

SURFACE = {
    "Agent",
    "BadInput",
    "Config",
    "Diverged",
    "EnvironmentFailed",
    "EvalResult",
    "PacelineError",
    "Report",
    "StoppedEarly",
    "evaluate",
    "load",
    "make_vec",
    "resume",
    "train",
}


def test_the_public_surface_is_exactly_this():
    assert set(paceline.__all__) == SURFACE
    assert len(paceline.__all__) == len(SURFACE)


@pytest.mark.parametrize("name", sorted(SURFACE))
def test_every_public_name_resolves_to_something_documented(name):
    thing = getattr(paceline, name)
    assert thing.__name__ == name
    assert inspect.isclass(thing) or inspect.isfunction(thing)


def test_a_name_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(AttributeError, match=r"no 'trian'; it has .*train"):
        paceline.trian  # noqa: B018
