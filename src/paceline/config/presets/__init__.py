"""Presets: tuned hyperparameters, one YAML file per algorithm and environment or suite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import BadInput
from ..files import load_file
from ..registry import entry
from ..schema import Config
from ..text import did_you_mean

FOLDER = Path(__file__).parent
GENERAL = ("continuous", "discrete", "images")
"""Presets for a kind of spaces, used if there is none for the environment."""
MEMORY = ".memory"
"""Ending of the name of a preset for policies with memory, which replaces that without."""


def presets(algo: str) -> dict[str, Path]:
    """The preset files of an algorithm, by name."""
    paths = sorted(FOLDER.glob("*/*.yaml"), key=lambda path: path.stem)
    return {path.stem: path for path in paths if path.parent.name == algo}


def preset_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the preset that `given` chooses, and its name; {} if there is none."""
    name, algo = given.get("preset", "auto"), str(given.get("algo", Config.algo))
    env_id = given.get("env_id", Config.env_id) if name == "auto" else name
    if name == "none" or not isinstance(env_id, str):
        return {}
    known = presets(algo)
    memory = given.get("memory") is not None
    if found := name if name in known else _preset_of(env_id, list(known), memory):
        values = load_file(known[found]) | {"preset": found}
        sync = entry("sync", given.get("sync"))
        if sync is not None and not sync.lockstep:  # its learners share no running statistics
            values.pop("normalize_obs", None)
            values.pop("normalize_return", None)
        return values
    if name == "auto":
        return {}
    plain = [one for one in known if not one.endswith(MEMORY)]
    raise BadInput(
        f"preset: there is none called {str(name)[:60]!r} for {algo[:60]}; there are auto, none, "
        f"{', '.join(plain)}{did_you_mean(str(name), known)}"
    )


def _preset_of(env_id: str, names: list[str], memory: bool) -> str | None:
    """That of the environment, or of another version of it; else that of its suite."""
    known = [one for one in names if not one.endswith(MEMORY)]
    found = _plain_preset_of(env_id, known)
    return f"{found}{MEMORY}" if memory and f"{found}{MEMORY}" in names else found


def _plain_preset_of(env_id: str, known: list[str]) -> str | None:
    suite, _, name = env_id.rpartition(":")
    for wanted in (env_id, name):
        if wanted in known:
            return wanted
        if found := _other_version(wanted, known):
            return found
    family = name.partition("-")[0].lower()  # EnvPool has MiniGrid's environments, as MiniGrid-…
    family = "minigrid" if family == "babyai" else family
    return next((one for one in (suite, family) if one in known and one not in GENERAL), None)


def _other_version(env_id: str, known: list[str]) -> str | None:
    """The newest known version of an environment."""
    name = env_id.rpartition("-v")[0]
    versions = [other for other in known if name and other.rpartition("-v")[0] == name]
    return max(versions, key=lambda other: (len(other), other), default=None)
