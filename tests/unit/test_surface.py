"""What `import paceline` offers: these names and no others, each documented and annotated."""

from __future__ import annotations

import inspect
import rlcompleter

import pytest

import paceline
from paceline.config.schema import Config

SURFACE = """Agent BadInput Config Diverged EnvironmentFailed EvalResult PacelineError Report
Run StoppedEarly build evaluate load make_vec resume train"""


def functions_of(thing):
    """A function itself; of a class its public methods and properties."""
    if inspect.isfunction(thing):
        return [thing]
    public = [member for name, member in vars(thing).items() if not name.startswith("_")]
    found = [getattr(one, "fget", None) or getattr(one, "__func__", one) for one in public]
    return [one for one in found if inspect.isfunction(one)]


def test_the_public_surface_is_exactly_this():
    assert sorted(paceline.__all__) == sorted(SURFACE.split())


def test_dir_lists_the_public_names():
    """As tab completion does; all of them load (below)."""
    assert dir(paceline) == sorted(paceline.__all__)
    assert "make_vec" in rlcompleter.Completer({"p": paceline}).attr_matches("p.make")[0]


@pytest.mark.parametrize("name", SURFACE.split())
def test_every_public_name_is_documented_and_annotated(name):
    thing = getattr(paceline, name)
    assert thing.__name__ == name
    generated = f"{name}("  # by dataclasses, if there is no docstring
    things = [thing, *([Config] if name == "Config" else [])]  # the function, and what it returns
    for one in things:
        assert one.__doc__ and not one.__doc__.startswith(generated)
        for function in functions_of(one):
            assert function.__doc__, function.__qualname__
            signature = inspect.signature(function)
            assert signature.return_annotation is not signature.empty, function.__qualname__
            for parameter in signature.parameters.values():
                annotated = parameter.annotation is not parameter.empty
                assert annotated or parameter.name == "self", (function.__qualname__, parameter)


def test_a_name_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(AttributeError, match=r"no 'trian'; it has .*train"):
        paceline.trian  # noqa: B018
