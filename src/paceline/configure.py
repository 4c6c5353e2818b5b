"""From what was asked for to a valid `Config`; every refusal is a sentence."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from .config import (
    ALGORITHM_DEFAULTS,
    ALIASES,
    BUDGETS,
    DEFAULT_BUDGET,
    Config,
    merged,
    presets,
)
from .config_files import load_file, plain
from .errors import BadInput
from .launcher import launched, local_size

if TYPE_CHECKING:
    from .spaces import ActionSpec, ObservationSpec

SAME_THING = (("batch_size", "minibatches"), ("num_envs", "num_envs_per_worker"))
"""Two ways to say it."""
MOST_SENTENCES = 10
MOST_ROWS = 10**8
"""Of what is said of a configuration's errors, and of one rollout."""


@cache
def _adapter() -> TypeAdapter[Config]:
    return TypeAdapter(Config)


def resolve(*given: Mapping[str, Any]) -> Config:
    """Defaults, then the algorithm's, then the preset's, then each of `given`; then validation."""
    explicit: dict[str, Any] = {}
    for layer in given:
        explicit = _over(explicit, plain(layer))
    explicit = _by_name(explicit)
    algo = explicit.get("algo", Config.algo)
    preset = _preset(explicit)
    values = _over(ALGORITHM_DEFAULTS.get(str(algo), {}), preset)
    if any(explicit.get(name) is not None for name in BUDGETS):
        values = {key: value for key, value in values.items() if key not in BUDGETS}
    values = _over(values, explicit)
    if preset and values.get("preset", "auto") == "auto":
        values["preset"] = preset["preset"]
    if all(values.get(name) is None for name in BUDGETS):
        values["total_steps"] = DEFAULT_BUDGET
    values |= _launched(explicit)
    try:
        config: Config = _adapter().validate_python(values)
        if spread := _spread(config, explicit):
            values |= spread
            config = _adapter().validate_python(values)
    except ValidationError as error:
        details = error.errors()
        said = [_sentence(detail) for detail in details[:MOST_SENTENCES]]
        if len(details) > MOST_SENTENCES:
            said.append(f"and {len(details) - MOST_SENTENCES:,} more like these")
        raise BadInput("\n".join(said)) from None
    if divided := _dividing(config, explicit):
        config = _adapter().validate_python(values | divided)
    _check(config)
    vars(config)["given"] = explicit
    return config


def _by_name(layer: dict[str, Any]) -> dict[str, Any]:
    """With an alias replaced by what it stands for."""
    alias = ALIASES.get(str(layer.get("algo")))
    return layer if alias is None else alias | layer | {"algo": alias["algo"]}


def _launched(explicit: Mapping[str, Any]) -> dict[str, Any]:
    """What follows from the number of processes that a launcher has started."""
    hogwild = explicit.get("sync") == "hogwild"
    name = "num_workers" if hogwild else "ranks"
    wanted = explicit.get(name)
    started = launched(asked=wanted is not None)
    if started is None:
        return {}
    number = started - 1 if hogwild else started
    if wanted not in (None, "auto", number, str(number)):
        watching = ", of which one only watches" if hogwild else ""
        raise BadInput(
            f"{name} is {wanted}, and this is one of {started} processes that a launcher has "
            f"started{watching}; leave it out, or start as many as that takes"
        )
    return {name: number}


def _spread(config: Config, explicit: Mapping[str, Any]) -> dict[str, int]:
    """How many environments, or workers, follow from how many there are of the other."""
    found = {}
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


def _dividing(config: Config, explicit: Mapping[str, Any]) -> dict[str, int]:
    """The nearest number of minibatches that fits, where nobody asked for the one that does not."""
    rows, ranks = config.num_envs * config.rollout_steps, config.ranks
    if rows > MOST_ROWS:
        return {}
    if config.minibatches and rows % config.minibatches and explicit.get("minibatches") is None:
        return {"minibatches": _nearest_divisor(rows, config.minibatches) or 1}
    size = config.batch_size
    if size and not _shared_equally(config) and explicit.get("batch_size") is None:
        each = max(1, round(size / ranks))
        return {"batch_size": ranks * (_nearest_divisor(rows, each) or 1)}
    return {}


def _shared_equally(config: Config) -> bool:
    """Whether `batch_size` is the same number of rows of every rank, and divides them."""
    rows, size = config.num_envs * config.rollout_steps, config.batch_size
    return not size or (size % config.ranks == 0 and rows % (size // config.ranks) == 0)


def fitted(config: Config, obs: ObservationSpec, act: ActionSpec) -> Config:
    """With what suits these spaces filled in, where nothing was tuned for the environment."""
    if config.preset != "auto":
        return config
    suits = "images" if obs.images else "continuous" if act.kind == "box" else "discrete"
    if suits not in presets(config.algo):
        return config
    off = {}
    if config.sync == "hogwild":  # whose learners have no statistics in common
        names = ("normalize_obs", "normalize_return")
        off = {name: False for name in names if name not in config.given}
    fit = resolve(config.given, {"preset": suits} | off)
    if fit.normalize_obs and not obs.numeric.any() and not config.given.get("normalize_obs"):
        fit = resolve(config.given, {"preset": suits, "normalize_obs": False})
    return fit


def _over(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`merged`; and of two ways to say the same thing, the later one is meant."""
    for one, other in (*SAME_THING, *(pair[::-1] for pair in SAME_THING)):
        if over.get(one) is not None and over.get(other) is None:
            under = {key: value for key, value in under.items() if key != other}
    return merged(under, over)


def _preset(explicit: Mapping[str, Any]) -> dict[str, Any]:
    name, algo = explicit.get("preset", "auto"), str(explicit.get("algo", Config.algo))
    if name == "none":
        return {}
    env_id = explicit.get("env_id", Config.env_id) if name == "auto" else name
    if not isinstance(env_id, str):
        return {}
    known = presets(algo)
    found = env_id if env_id in known else _other_version(env_id, list(known))
    if found:
        return load_file(known[found]) | {"preset": found}
    if name == "auto":
        return {}
    raise BadInput(
        f"preset: there is none called {str(name)[:60]!r} for {algo[:60]}; there are auto, none, "
        f"{', '.join(known)}{_nearest(str(name), list(known))}"
    )


def _other_version(env_id: str, known: list[str]) -> str | None:
    """What was tuned for one version of an environment serves its others."""
    name = env_id.rpartition("-v")[0]
    alike = [other for other in known if name and other.rpartition("-v")[0] == name]
    return max(alike, key=lambda other: (len(other), other), default=None)


def field_names(kind: Any = Config, prefix: str = "") -> list[str]:
    """Every field by its dotted name, sections included."""
    names = []
    for entry in dataclasses.fields(kind):
        names.append(prefix + entry.name)
        default = entry.default_factory
        if isinstance(default, type) and dataclasses.is_dataclass(default):
            names += field_names(default, f"{prefix}{entry.name}.")
    return names


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _sentence(detail: Any) -> str:
    """One of pydantic's errors: which field, the value seen, what it should be."""
    place = [str(part) for part in detail["loc"]]
    known = field_names()
    unknown = detail["type"] in ("extra_forbidden", "unexpected_keyword_argument")
    while place and ".".join(place) not in known and not unknown:
        place.pop()  # positions within a list, and branches of a union
    name = ".".join(place)
    if unknown:
        shown = name[:80] if name.isprintable() and name else repr(name[:80])
        return f"{shown}: there is no such option{_nearest(name, known)}"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    seen = str(detail["input"])
    return f"{name} is {seen[:60]!r}: {message}"


def _check(config: Config) -> None:
    """What no single field can know."""
    rows = config.num_envs * config.rollout_steps
    if rows > MOST_ROWS:
        raise BadInput(
            f"num_envs {config.num_envs} × rollout_steps {config.rollout_steps} is a rollout of "
            f"{rows:,} rows; {MOST_ROWS:,} are the most that is taken"
        )
    if config.batch_size and config.minibatches:
        raise BadInput(
            f"batch_size {config.batch_size} and minibatches {config.minibatches} say the same "
            "thing twice; give one of them"
        )
    if config.batch_size and not _shared_equally(config):
        ranks, wanted = config.ranks, max(1, config.batch_size // config.ranks)
        each = "" if ranks == 1 else f" on each of {ranks} ranks"
        near = _nearest_divisor(rows, wanted)
        nearest = f"the nearest that does is {near * ranks}" if near else "choose one that does"
        raise BadInput(
            f"batch_size {config.batch_size} does not divide the rollout of {config.num_envs} envs "
            f"× {config.rollout_steps} steps = {rows} rows{each}; {nearest}"
        )
    if config.minibatches and rows % config.minibatches:
        raise BadInput(
            f"minibatches {config.minibatches} does not divide the rollout of {config.num_envs} "
            f"envs × {config.rollout_steps} steps = {rows} rows; "
            f"{_divisor(rows, config.minibatches)}"
        )
    if config.algo == "a2c" and (config.epochs, config.minibatch_count) != (1, 1):
        raise BadInput(
            f"a2c takes one step on each rollout, and epochs is {config.epochs} with "
            f"{config.minibatch_count} minibatches; leave both at 1, or use --algo ppo"
        )
    if config.algo == "impala" and config.epochs != 1:
        raise BadInput(
            f"impala passes over each rollout once, and epochs is {config.epochs}; leave it at 1, "
            "or use --algo ppo"
        )
    _check_workers(config)
    _check_ranks(config)
    if config.impala.c_bar > config.impala.rho_bar:
        raise BadInput(
            f"impala.c_bar is {config.impala.c_bar} and impala.rho_bar {config.impala.rho_bar}; "
            "c_bar may not be the larger; write both, such as --impala.rho-bar "
            f"{config.impala.rho_bar} --impala.c-bar {config.impala.rho_bar}"
        )


def _check_workers(config: Config) -> None:
    workers, envs, each = config.num_workers, config.num_envs, config.num_envs_per_worker
    sampling: str = config.sampling
    if config.sync == "hogwild":
        sampling = "a3c"
    if sampling == "serial" and workers:
        raise BadInput(f"sampler is 'serial', which has no workers, and num_workers is {workers}")
    if sampling in ("workers", "stream") and not workers:
        raise BadInput(
            f"sampler is {sampling!r}, which needs workers; write --num-workers 2, or auto"
        )
    if each and not workers:
        raise BadInput(
            f"num_envs_per_worker is {each}, and there are no workers; write --num-workers 2, or "
            "auto, or --num-envs for environments in the learner's own process"
        )
    if each and each * workers != envs:
        raise BadInput(
            f"num_envs {envs} is not num_envs_per_worker {each} × num_workers {workers}; "
            "give one of the first two"
        )
    if workers and envs % workers:
        near = _nearest_divisor(envs, min(workers, envs))
        raise BadInput(
            f"num_envs {envs} can't be shared equally by {workers} workers; write --num-workers "
            f"{near}, or --num-envs {-(-envs // workers) * workers}"
        )
    if sampling == "stream" and not config.algorithm.off_policy:
        raise BadInput(
            f"sampler is 'stream', whose rollouts are made by older weights than those that "
            f"learn, and {config.algo} takes them for its own; write --sampler workers, or "
            "--algo impala, which corrects for it"
        )


def _check_ranks(config: Config) -> None:
    ranks, sync = config.ranks, config.sync
    if sync == "hogwild":
        _check_hogwild(config)
    elif sync == "local" and ranks > 1:
        raise BadInput(f"sync is 'local', which is for one learner, and ranks is {ranks}")
    scheme = config.init_method.partition("://")[0]
    if scheme not in ("env", "file", "tcp"):
        raise BadInput(
            f"init_method is {config.init_method[:80]!r}: write env://, file:///a/path or "
            "tcp://host:port"
        )


def _check_hogwild(config: Config) -> None:
    """Learners that share weights without a lock take one small step at a time."""
    if config.algo != "a2c":
        raise BadInput(
            f"sync is 'hogwild', which goes with a2c alone, as a3c, and algo is {config.algo!r}; "
            "write --algo a3c, or --ranks for learners that wait for each other"
        )
    if config.ranks > 1:
        raise BadInput(
            f"a3c's learners are its workers, and ranks is {config.ranks}; write --num-workers "
            f"{config.ranks}, or --algo a2c for ranks that average their gradients"
        )
    if config.sampler not in ("auto", "serial"):
        raise BadInput(
            f"sampler is {config.sampler!r}, and a3c's learners step their own environments; "
            "leave it out"
        )
    if not config.num_workers:
        raise BadInput("a3c's learners are its workers; write --num-workers 2, or auto")
    for name in ("normalize_obs", "normalize_return"):
        if getattr(config, name):
            raise BadInput(
                f"{name} takes learners that agree on what they have seen, and a3c's do not; "
                "leave it off, or write --algo a2c with --ranks"
            )
    if config.device == "cuda":
        raise BadInput("a3c's learners share memory, not a GPU; write --device cpu")


def _divisor(rows: int, wanted: int) -> str:
    number = _nearest_divisor(rows, wanted)
    return f"the nearest that does is {number}" if number else "choose one that does"


def _nearest_divisor(rows: int, wanted: int) -> int | None:
    """The nearest number that does divide, if it is not far away."""
    for distance in range(100_000):
        for number in (wanted - distance, wanted + distance):
            if 0 < number <= rows and rows % number == 0:
                return number
    return None
