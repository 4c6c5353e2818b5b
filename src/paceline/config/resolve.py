"""From what was asked for to a valid `Config`; every refusal is a sentence."""

from __future__ import annotations

import copy
import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from ..errors import BadInput
from ..processes.launcher import launched, local_size
from ..storage.files import absolute
from .checks import MOST_ROWS, check, nearest_divisor, shared_equally
from .files import load_file, plain
from .registry import entry, sections
from .schema import ALIASES, BUDGETS, STRICT, EnvConfig, option_fields, presets
from .schema import Config as Resolved

if TYPE_CHECKING:
    from ..envs.spaces import ActionSpec, ObservationSpec

GENERAL = ("continuous", "discrete", "images")
"""Presets for environments that nothing was tuned for."""
SAME_THING = (("batch_size", "minibatches"), ("num_envs", "num_envs_per_worker"))
"""Two ways to say it."""
PATHS, FILE = ("output_dir", "log_jsonl", "init_from"), "file://"
"""Options that name a path, and how a file is named where ranks meet."""
MOST_SENTENCES = 10
"""That are said of a configuration's errors."""


def Config(**given: Any) -> Resolved:
    """A training run; what is not given is filled in from the preset for its environment."""
    return resolve(given)


def resolve(*given: Mapping[str, Any]) -> Resolved:
    """Defaults, then the algorithm's, then the preset's, then each of `given`; then validation."""
    explicit: dict[str, Any] = {}
    for layer in given:
        explicit = _over(explicit, plain(layer))
    explicit = _with_absolute_paths(_by_name(explicit))
    preset, algorithm = _preset(explicit), entry("algo", explicit.get("algo", Resolved.algo))
    values = _over(getattr(algorithm, "defaults", {}), preset)
    if any(explicit.get(name) is not None for name in BUDGETS):
        values = {key: value for key, value in values.items() if key not in BUDGETS}
    values = _over(values, explicit)
    if preset and values.get("preset", "auto") == "auto":
        values["preset"] = preset["preset"]
    if all(values.get(name) is None for name in BUDGETS):
        values["total_steps"] = 1_000_000
    config = _validated(values | _launched(explicit), explicit)
    config = dataclasses.replace(config, **_spread(config, explicit))
    config = dataclasses.replace(config, **_dividing(config, explicit))
    check(config)
    return config


def _validated(values: Mapping[str, Any], explicit: Mapping[str, Any]) -> Resolved:
    """Every option by itself, whichever section it is in."""
    kinds = sections(values)
    try:
        found = _adapter(*kinds.items()).validate_python(values)
    except ValidationError as error:
        details = error.errors()
        said = [_sentence(detail, field_names(kinds)) for detail in details[:MOST_SENTENCES]]
        if len(details) > MOST_SENTENCES:
            said.append(f"and {len(details) - MOST_SENTENCES:,} more like these")
        raise BadInput("\n".join(said)) from None
    own = {one.name: getattr(found, one.name) for one in option_fields()}
    options = {name: getattr(found, name) for name in kinds}
    return Resolved(**own, options=options, given=explicit, working_directory=absolute(""))


@cache
def _adapter(*kinds: tuple[str, type]) -> TypeAdapter[Any]:
    """Of a configuration with these sections: options side by side, as a file has them."""
    hints = get_type_hints(Resolved, include_extras=True)
    own = [(one.name, hints[one.name], copy.copy(one)) for one in option_fields()]
    more = [(name, kind, dataclasses.field(default_factory=kind)) for name, kind in kinds]
    strict = {"__pydantic_config__": STRICT}
    try:
        made = dataclasses.make_dataclass("Options", own + more, namespace=strict, kw_only=True)
        return TypeAdapter(made)
    except (PydanticUserError, NameError, TypeError) as error:
        names = ", ".join(name for name, _ in kinds)
        raise BadInput(f"the options of {names} can't be read: {error}") from None


def asked(config: Resolved) -> dict[str, Any]:
    """What was asked for, by `dataclasses.replace` too."""
    filled = resolve(config.given)
    names = (*(one.name for one in option_fields()), *config.options)
    mine = {name: getattr(config, name) for name in names}
    new = {name: value for name, value in mine.items() if value != getattr(filled, name, None)}
    return {**config.given, **new}


def _with_absolute_paths(layer: dict[str, Any]) -> dict[str, Any]:
    """An environment may change the working directory; a run stays where it was asked for."""
    found = {name: layer[name] for name in PATHS if isinstance(layer.get(name), str)}
    rooted = {name: absolute(path) for name, path in found.items() if path}
    meeting = layer.get("init_method")
    if isinstance(meeting, str) and meeting.startswith(FILE) and meeting != FILE:
        rooted["init_method"] = FILE + absolute(meeting.removeprefix(FILE))
    return layer | rooted


def _by_name(layer: dict[str, Any]) -> dict[str, Any]:
    """With an alias replaced by what it stands for."""
    alias = ALIASES.get(str(layer.get("algo")))
    return layer if alias is None else alias | layer | {"algo": alias["algo"]}


def _launched(explicit: Mapping[str, Any]) -> dict[str, Any]:
    """What follows from the number of processes that a launcher has started."""
    sync = entry("sync", explicit.get("sync")) or entry("sync", "allreduce")
    name, wanted = sync.counted_by, explicit.get(sync.counted_by)
    started = launched(asked=wanted is not None)
    if started is None:
        return {}
    number = started - sync.watcher
    if wanted not in (None, "auto", number, str(number)):
        watching = ", of which one only watches" if sync.watcher else ""
        raise BadInput(
            f"{name} is {wanted}, and this is one of {started} processes that a launcher has "
            f"started{watching}; leave it out, or start as many as that takes"
        )
    return {name: number}


def _spread(config: Resolved, explicit: Mapping[str, Any]) -> dict[str, Any]:
    """How many environments, or workers, follow from how many there are of the other."""
    found: dict[str, Any] = {}
    workers, each, envs = config.num_workers, config.num_envs_per_worker, config.num_envs
    if explicit.get("num_workers") == "auto" and config.ranks > 1:  # which have the CPUs in common
        workers = found["num_workers"] = max(1, workers // local_size(config.ranks))
    if each and workers and explicit.get("num_envs") is None:
        return found | {"num_envs": workers * each}
    if config.ranks > 1 and explicit.get("num_envs") is None:  # as many in all as were chosen
        envs = found["num_envs"] = max(1, round(envs / config.ranks))
    if workers and envs % workers and explicit.get("num_workers") == "auto":
        found["num_workers"] = max(n for n in range(1, workers + 1) if envs % n == 0)
    return found


def _dividing(config: Resolved, explicit: Mapping[str, Any]) -> dict[str, Any]:
    """The nearest number of minibatches that fits, where nobody asked for the one that does not."""
    rows, ranks = config.num_envs * config.rollout_steps, config.ranks
    if rows > MOST_ROWS:
        return {}
    found: dict[str, Any] = {}
    if config.memory is not None and config.memory_segment is None:
        found["memory_segment"] = nearest_divisor(config.rollout_steps, 16) or 1
    if config.minibatches and rows % config.minibatches and explicit.get("minibatches") is None:
        return found | {"minibatches": nearest_divisor(rows, config.minibatches) or 1}
    size = config.batch_size
    if size and not shared_equally(config) and explicit.get("batch_size") is None:
        each = max(1, round(size / ranks))
        return found | {"batch_size": ranks * (nearest_divisor(rows, each) or 1)}
    return found


def fitted(config: Resolved, obs: ObservationSpec, act: ActionSpec) -> Resolved:
    """With what suits these spaces filled in, where nothing was tuned for the environment."""
    suits = "images" if obs.images else "continuous" if act.kind == "box" else "discrete"
    if config.preset == "auto" and suits in presets(config.algo_section):
        config = resolve(asked(config), {"preset": suits})
    if config.normalize_obs and not obs.numeric.any() and not config.given.get("normalize_obs"):
        return resolve(asked(config), {"preset": config.preset, "normalize_obs": False})
    return config


def _over(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `under`; of two ways to say the same thing, the later one is meant."""
    under = dict(under)
    for one, other in (*SAME_THING, *(pair[::-1] for pair in SAME_THING)):
        if over.get(one) is not None and over.get(other) is None:
            under.pop(other, None)
    return _merged(under, over)


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Section by section; `kwargs` as a whole."""
    out = {**under, **over}
    for key in under.keys() & over.keys() - {"kwargs"}:
        if isinstance(under[key], Mapping) and isinstance(over[key], Mapping):
            out[key] = _merged(under[key], over[key])
    return out


def _preset(explicit: Mapping[str, Any]) -> dict[str, Any]:
    name, algo = explicit.get("preset", "auto"), str(explicit.get("algo", Resolved.algo))
    env_id = explicit.get("env_id", Resolved.env_id) if name == "auto" else name
    if name == "none" or not isinstance(env_id, str):
        return {}
    known = presets(algo)
    if found := _tuned(env_id, list(known)):
        values = load_file(known[found]) | {"preset": found}
        sync = entry("sync", explicit.get("sync"))
        if sync is not None and not sync.lockstep:  # whose learners have no statistics in common
            values.pop("normalize_obs", None)
            values.pop("normalize_return", None)
        return values
    if name == "auto":
        return {}
    raise BadInput(
        f"preset: there is none called {str(name)[:60]!r} for {algo[:60]}; there are auto, none, "
        f"{', '.join(known)}{nearest(str(name), known)}"
    )


def _tuned(env_id: str, known: list[str]) -> str | None:
    """The preset for an environment, whoever steps it; or that for its suite."""
    suite, _, name = env_id.rpartition(":")
    for wanted in (env_id, name):
        if wanted in known:
            return wanted
        if found := _other_version(wanted, known):
            return found
    family = name.partition("-")[0].lower()  # EnvPool's MiniGrid-… are MiniGrid's
    family = "minigrid" if family == "babyai" else family
    return next((one for one in (suite, family) if one in known and one not in GENERAL), None)


def _other_version(env_id: str, known: list[str]) -> str | None:
    """What was tuned for one version of an environment serves its others."""
    name = env_id.rpartition("-v")[0]
    alike = [other for other in known if name and other.rpartition("-v")[0] == name]
    return max(alike, key=lambda other: (len(other), other), default=None)


def field_names(kinds: Mapping[str, type] | None = None) -> list[str]:
    """Every option by its dotted name, sections included."""
    kinds = {"env": EnvConfig, **(kinds or sections({}))}
    dotted = [f"{name}.{one.name}" for name in kinds for one in dataclasses.fields(kinds[name])]
    return [*(one.name for one in option_fields()), *kinds, *dotted]


def nearest(name: str, known: Iterable[str], likeness: float = 0.5) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=likeness)
    return f"; did you mean {near[0]}?" if near else ""


def _sentence(detail: Any, known: list[str]) -> str:
    """One of pydantic's errors: which field, the value seen, what it should be."""
    place = [str(part) for part in detail["loc"]]
    unknown = detail["type"] in ("extra_forbidden", "unexpected_keyword_argument")
    while place and ".".join(place) not in known and not unknown:
        place.pop()  # positions within a list, and branches of a union
    name = ".".join(place)
    if unknown:
        shown = name[:80] if name.isprintable() and name else repr(name[:80])
        return f"{shown}: there is no such option{nearest(name, known)}"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{name} is {str(detail['input'])[:60]!r}: {message}"
