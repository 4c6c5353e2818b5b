"""From given options to a valid `Config`: merge, validate, fill in what follows, check the rest.

Later wins: a field's default, the algorithm's, the preset's, then each layer that is given (in
general a file, then flags).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from ..errors import BadInput
from ..processes.launcher import launched
from ..storage.files import absolute
from .known_names import as_key, explain_unknown, explain_value
from .presets import preset_values, presets
from .registry import ENTRIES, as_dicts, by_name, entry, is_options, section_of, sections
from .schedules import needs_start
from .schema import ALIASES, BUDGETS, CHOSEN, EnvConfig, MadeEnvConfig, option_fields
from .schema import Config as Resolved
from .sizes import fill_sizes
from .values import STRICT, Width

if TYPE_CHECKING:
    from ..envs.spaces import ActionSpec, ObservationSpec

DEFAULT_STEPS = 1_000_000
EXCLUSIVE = (
    ("batch_size", "minibatches"),
    ("num_envs", "num_envs_per_worker"),
    *(("parallel", name) for name in CHOSEN),
)
"""Pairs of options of which a later layer's one replaces an earlier layer's other."""
PATHS, FILE = ("output_dir", "log_jsonl", "init_from"), "file://"
"""Options that name a path, and how `init_method` names a file."""
MAX_ERRORS = 10
"""Validation errors that are reported."""


def Config(**given: Any) -> Resolved:
    """A training run; options that are not given come from the environment's preset."""
    return resolve(given)


def resolve(*layers: Mapping[str, Any]) -> Resolved:
    """The configuration that these layers of options amount to, a later one over an earlier."""
    given: dict[str, Any] = {}
    for layer in layers:
        given = _merge_layers(given, _expand_lstm(_plain(layer)))
    parallel = _check_parallel(given)
    given = _absolute_paths(expand_alias(given))
    if parallel:  # an alias has set them
        given = {name: value for name, value in given.items() if name not in CHOSEN}
    preset, algorithm = preset_values(given), entry("algo", given.get("algo", Resolved.algo))
    values = _merge_layers(getattr(algorithm, "defaults", {}), preset)
    if any(given.get(name) is not None for name in BUDGETS):
        values = {key: value for key, value in values.items() if key not in BUDGETS}
    values = _merge_layers(values, given)
    if preset and values.get("preset", "auto") == "auto":
        values["preset"] = preset["preset"]
    if all(values.get(name) is None for name in BUDGETS):
        values["total_steps"] = DEFAULT_STEPS
    if parallel and getattr(entry("sync", given.get("sync")), "counted_by", "") == "num_workers":
        values["num_workers"] = 1
    config = _validate(values | _launched_processes(given), given)
    config = fill_sizes(config)
    _check_entries(config)
    _check_schedules(config)
    _check_normalized_rows(config)
    if config.eval_every and not config.eval_episodes:
        raise BadInput(
            f"eval_every is {config.eval_every} and eval_episodes is 0, which turns evaluation "
            "off; leave one of them out"
        )
    return config


def given_options(config: Resolved) -> dict[str, Any]:
    """The options that were given, to `Config` or to `dataclasses.replace`."""
    filled = resolve(config.given)
    names = (*(one.name for one in option_fields()), *config.options)
    mine = {name: getattr(config, name) for name in names}
    new = {name: value for name, value in mine.items() if value != getattr(filled, name, None)}
    return {**config.given, **new}


def fit_to_spaces(config: Resolved, obs: ObservationSpec, act: ActionSpec) -> Resolved:
    """With the general preset for these spaces, if there is none for the environment."""
    general = "images" if obs.images else "continuous" if act.kind == "box" else "discrete"
    if config.preset == "auto" and general in presets(config.algo_section):
        config = resolve(given_options(config), {"preset": general})
    changes: dict[str, Any] = {}
    if config.normalize_obs and not obs.numeric.any() and not config.given.get("normalize_obs"):
        changes["normalize_obs"] = False
    if config.encoder == "grid" and obs.images and not config.given.get("encoder"):
        changes["encoder"] = None
    if changes:
        config = resolve(given_options(config), {"preset": config.preset, **changes})
    return config


# Layers -------------------------------------------------------------------------------------------


def _plain(layer: Mapping[str, Any]) -> dict[str, Any]:
    """With dataclasses as dicts, and classes as names; `algo=PPO(clip=0.1)` is both in one."""
    out = dict(layer)
    for option, registry in ENTRIES.items():
        value = layer.get(option)
        if is_options(value):
            out[option] = by_name(type(value), registry)
            out[section_of(option, out[option])] = value
        elif option in layer:
            out[option] = by_name(value, registry)
    return as_dicts(out)


def _merge_layers(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    under = dict(under)
    for one, other in (*EXCLUSIVE, *(pair[::-1] for pair in EXCLUSIVE)):
        if over.get(one) is not None and over.get(other) is None:
            under.pop(other, None)
    return _merge(under, over)


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Section by section; `kwargs` is replaced as a whole."""
    out = {**under, **over}
    for key in under.keys() & over.keys() - {"kwargs"}:
        if isinstance(under[key], Mapping) and isinstance(over[key], Mapping):
            out[key] = _merge(under[key], over[key])
    return out


def expand_alias(given: dict[str, Any]) -> dict[str, Any]:
    alias = ALIASES.get(str(given.get("algo")))
    return given if alias is None else alias | given | {"algo": alias["algo"]}


def _expand_lstm(layer: dict[str, Any]) -> dict[str, Any]:
    """`lstm=64` is `memory="lstm", memory_size=64`."""
    size = layer.get("lstm")
    try:
        TypeAdapter(Width).validate_python(size)
    except ValidationError:
        return layer  # there is none, or it is refused by its name
    for name in ("memory", "memory_size"):
        if layer.get(name) is not None:
            raise BadInput(
                f"lstm is {size}, which is short for memory 'lstm' and memory_size {size}, and "
                f"{name} is {layer[name]!r}; leave one of them out"
            )
    return {**layer, "memory": "lstm", "memory_size": size, "lstm": None}


def _check_parallel(given: Mapping[str, Any]) -> bool:
    """Whether `parallel` is to choose the processes; refused where they are chosen already."""
    parallel = given.get("parallel")
    if parallel in (None, "none"):
        return False
    for name in CHOSEN:
        if given.get(name) is not None:
            raise BadInput(
                f"parallel is {parallel!r}, which chooses {name}, and {name} is {given[name]!r}; "
                "leave one of them out"
            )
    algo = str(given.get("algo"))
    if "ranks" in ALIASES.get(algo, {}):
        raise BadInput(
            f"parallel is {parallel!r}, which chooses ranks, and {algo} is an algorithm on ranks; "
            f"write --algo {ALIASES[algo]['algo']}, or leave parallel out"
        )
    if started := launched(init_method=given.get("init_method") or Resolved.init_method):
        raise BadInput(
            f"parallel is {parallel!r}, which chooses processes, and a launcher has started "
            f"{started} already (RANK is set); leave it out, or start the command without torchrun"
        )
    return True


def _absolute_paths(given: dict[str, Any]) -> dict[str, Any]:
    """An environment may change the working directory; paths stay relative to the first one."""
    found = {name: given[name] for name in PATHS if isinstance(given.get(name), str)}
    rooted = {name: absolute(path) for name, path in found.items() if path}
    method = given.get("init_method")
    if isinstance(method, str) and method.startswith(FILE) and method != FILE:
        rooted["init_method"] = FILE + absolute(method.removeprefix(FILE))
    return given | rooted


def _launched_processes(given: Mapping[str, Any]) -> dict[str, Any]:
    """`ranks`, or `num_workers` of a3c, from the number of processes that a launcher started."""
    sync = entry("sync", given.get("sync")) or entry("sync", "allreduce")
    name, wanted = sync.counted_by, given.get(sync.counted_by)
    started = launched(wanted is not None, given.get("init_method") or Resolved.init_method)
    if started is None:
        return {}
    number = started - sync.watcher
    if wanted not in (None, "auto", number, str(number)):
        watching = ", one of which only watches" if sync.watcher else ""
        raise BadInput(
            f"{name} is {wanted}, but a launcher has started {started} processes{watching}; leave "
            f"{name} out, or start as many as it takes"
        )
    return {name: number}


# Validation of single options ---------------------------------------------------------------------


def _validate(values: Mapping[str, Any], given: Mapping[str, Any]) -> Resolved:
    kinds = sections(values)
    try:
        found = _adapter(*kinds.items()).validate_python(values)
    except ValidationError as error:
        section = section_of("algo", values.get("algo", Resolved.algo))
        raise _refusal(error, field_names(kinds), section) from None
    own = {one.name: getattr(found, one.name) for one in option_fields()}
    options = {name: getattr(found, name) for name in kinds}
    return Resolved(**own, options=options, given=given, working_directory=absolute(""))


@cache
def _adapter(*kinds: tuple[str, type]) -> TypeAdapter[Any]:
    """Validates the options of `Config` with these sections beside them, as in a file."""
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


def check_env(kwargs: Any, **options: Any) -> dict[str, Any]:
    """How environments that belong to no run are made, checked.

    Nothing is written to a file, so that keyword arguments may be anything.
    """
    if not isinstance(kwargs, Mapping | None):
        raise BadInput(f"kwargs is {str(kwargs)[:60]!r}; write a dict of keyword arguments")
    known = [one.name for one in dataclasses.fields(MadeEnvConfig)]
    try:
        found = TypeAdapter(MadeEnvConfig).validate_python(options)
    except ValidationError as error:
        raise _refusal(error, known, section="") from None
    return vars(found) | {"kwargs": dict(kwargs or {})}


def _refusal(error: ValidationError, known: list[str], section: str) -> BadInput:
    details = error.errors()
    lines = [_error_message(detail, known, section) for detail in details[:MAX_ERRORS]]
    if len(details) > MAX_ERRORS:
        lines.append(f"and {len(details) - MAX_ERRORS:,} more errors")
    return BadInput("\n".join(lines))


def _error_message(detail: Any, known: list[str], section: str) -> str:
    """One of pydantic's errors: the option, its value, and what it should be.

    `section` is that of the chosen algorithm.
    """
    place, value = [str(part) for part in detail["loc"]], detail["input"]
    unknown = detail["type"] in ("extra_forbidden", "unexpected_keyword_argument")
    spell = partial(as_key, inside=place[0] if place[1:] else "")
    while place and ".".join(place) not in known and not unknown:
        place.pop()  # an index of a list, or a branch of a union
    name = ".".join(place)
    if unknown:
        shown = name[:80] if name.isprintable() and name else repr(name[:80])
        return f"{shown}: {explain_unknown(name, value, known, section, spell)}"
    if name == "env" and isinstance(value, str):
        return f"env is {value[:60]!r}: env is a section; the environment is env_id"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{name} is {str(value)[:60]!r}: {message}{explain_value(name, value, spell)}"


def field_names(kinds: Mapping[str, type] | None = None) -> list[str]:
    """Every option by its dotted name, and every section."""
    kinds = {"env": EnvConfig, **(kinds or sections({}))}
    dotted = [f"{name}.{one.name}" for name in kinds for one in dataclasses.fields(kinds[name])]
    return [*(one.name for one in option_fields()), *kinds, *dotted]


# Combinations of options that are refused ---------------------------------------------------------


def _check_entries(config: Resolved) -> None:
    """Each chosen entry refuses the configurations that it can't run with."""
    entries = (config.entry(option) for option in ENTRIES if option != "algo")
    for chosen in (config.algorithm, *entries):
        if refuse := getattr(chosen, "refuse", None):
            refuse(config)


def _check_schedules(config: Resolved) -> None:
    """The schedule of an option that is 0 can't lead anywhere: the loss multiplies it."""
    for name, (start, schedule) in getattr(config.algorithm, "schedules", {}).items():
        option = f"{config.algo_section}.{name}"
        try:
            needed = needs_start(schedule)
        except ValueError as error:  # an option of one's own may be any text
            raise BadInput(f"the schedule of {option} is {schedule!r}: it {error}") from None
        if start == 0 and needed:
            raise BadInput(
                f"{option} is 0, and its schedule {schedule!r} needs a value to start from; write "
                f"--{option.replace('_', '-')} 0.01, for example"
            )


def _check_normalized_rows(config: Resolved) -> None:
    """Normalizing a single advantage to mean 0 would make it 0."""
    over, rows = config.algorithm.normalize_advantage, config.num_envs * config.rollout_steps
    option = f"{config.algo_section}.normalize_advantage"
    flag = option.replace("_", "-")
    if over == "rollout" and config.ranks * rows == 1:
        raise BadInput(
            f"{option} is 'rollout', but a rollout of 1 env × 1 step has a single row, whose "
            f"advantage would be 0; write --{flag} none, or more --rollout-steps"
        )
    if over == "minibatch" and rows == config.minibatch_count:
        raise BadInput(
            f"{option} is 'minibatch', but with minibatches {config.minibatch_count} each has a "
            f"single row, whose advantage would be 0; write --{flag} "
            f"{'none' if rows == 1 else 'rollout'}, or fewer --minibatches"
        )
