"""In every space: training, evaluation, resuming to the byte, acting on one and on many."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from saved_runs import PLAIN, last_state, metrics_of
from worlds import ACTIONS, OBSERVATIONS, Anything

import paceline
from paceline.envs.adapters import ObservationAdapter
from paceline.envs.spaces import action_spec, observation_spec
from paceline.errors import BadInput
from paceline.learning.compiler import compiler_missing

PAIRS = {
    **{
        f"{name}-discrete": (space, ACTIONS["discrete"], {}) for name, space in OBSERVATIONS.items()
    },
    **{f"dict-{name}": (OBSERVATIONS["dict"], space, {}) for name, space in ACTIONS.items()},
    **{
        f"masked {seen}-{name}": (OBSERVATIONS[seen], ACTIONS[name], {"masked": True})
        for seen in ("discrete", "dict", "image and numbers")
        for name in ("discrete", "multidiscrete", "multibinary")
    },
}
ONE_STEP = {"minibatches": 1, "epochs": 1}


def config_of(pair, folder, steps=192, **options):
    observation, action, extras = PAIRS[pair]
    defaults = {
        **PLAIN,
        "num_envs": 3,
        "rollout_steps": 16,
        "minibatches": 2,
        "epochs": 2,
        "total_steps": steps,
        "hidden": (16,),
        "eval_episodes": 3,
        "output_dir": str(folder),
    }
    env = partial(Anything, observation, action, **extras)
    return paceline.Config(env_id=env, **(defaults | options)), env


def assert_resumes_to_the_byte(pair, folder, **options):
    config, env = config_of(pair, folder / "whole", **options)
    list(paceline.train(config))
    config, _ = config_of(pair, folder / "parts", **options)
    for report in paceline.train(config):
        if report.iter == 2:
            break
    assert len(list(paceline.resume(folder / "parts", env_id=env))) >= 1
    assert last_state(folder / "whole") == last_state(folder / "parts")
    return env


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.startswith(("dict", "masked"))])
def test_impala_knows_the_probability_of_every_kind_of_action(pair, tmp_path):
    """The learner's ratio to the policy that acted is 1 where both are the same."""
    assert_resumes_to_the_byte(pair, tmp_path, algo="impala", log_every=1, **ONE_STEP)
    ratios = [line["rho_mean"] for line in metrics_of(tmp_path / "whole")]
    assert len(ratios) >= 4
    assert ratios == pytest.approx([1.0] * len(ratios), abs=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pair", PAIRS)
def test_it_trains_resumes_to_the_byte_evaluates_and_acts(pair, tmp_path):
    env = assert_resumes_to_the_byte(pair, tmp_path)
    agent = paceline.load(tmp_path / "whole")
    result = paceline.evaluate(agent, env, 4)
    assert result.episodes == 4 and np.isfinite(result.mean)

    one = env()
    seen, info = one.reset(seed=5)
    mask = info.get("action_mask")
    for sample in (False, True):
        assert one.action_space.contains(agent.act(seen, sample=sample, action_mask=mask))
    adapter = ObservationAdapter(agent.network.obs)
    shape, dtype = agent.network.obs.stored
    batch = np.zeros((6, *shape), dtype)
    singles = [one.observation_space.sample() for _ in range(6)]
    for i, observation in enumerate(singles):
        adapter.write(agent.network.obs.split(batch), i, observation, {})
    together = agent.act(adapter.read(batch))
    assert len(together) == 6
    for action, observation in zip(together, singles, strict=True):
        np.testing.assert_allclose(action, agent.act(observation), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair",
    [
        pytest.param("masked discrete-discrete", marks=pytest.mark.slow),
        "masked dict-multidiscrete",
    ],
)
@pytest.mark.parametrize("algo", ["ppo", pytest.param("a2c", marks=pytest.mark.slow)])
def test_a_compiled_step_respects_masks_too(pair, algo, tmp_path):
    if missing := compiler_missing():
        pytest.skip(missing)
    plain = ONE_STEP if algo == "a2c" else {}
    results = []
    for choice in ("on", "off"):
        config, _ = config_of(pair, tmp_path / choice, algo=algo, compile=choice, **plain)
        list(paceline.train(config))
        results.append(paceline.load(tmp_path / choice).weights)
    compiled, eager = results
    for name in eager:
        np.testing.assert_allclose(compiled[name], eager[name], rtol=1e-3, atol=1e-4)


def test_a_mask_leaves_entropy_and_choice_to_what_is_allowed(tmp_path):
    """With one action allowed in each choice there is nothing to decide."""
    observation, action, _ = PAIRS["masked dict-multidiscrete"]

    class Forced(Anything):
        def _look(self):
            seen, _ = super()._look()
            self.mask = np.zeros(self.spec_of_action.size, np.int8)
            self.mask[[2, 3, 5]] = 1  # the third of three, the first of two, the first of four
            return seen, {"action_mask": self.mask}

    env = partial(Forced, observation, action, masked=True)
    config, _ = config_of("masked dict-multidiscrete", tmp_path / "run")
    reports = list(paceline.train(config.replace(env_id=env)))
    assert all(abs(report.entropy) < 1e-6 and report.approx_kl < 1e-6 for report in reports)
    agent = paceline.load(tmp_path / "run")
    seen, info = env().reset(seed=0)
    for sample in (False, True):
        assert agent.act(seen, sample=sample, **info).tolist() == [2, 5, -1]


def test_a_mask_may_be_a_key_of_the_observation(tmp_path):
    class Keyed(Anything):
        def __init__(self):
            super().__init__(OBSERVATIONS["box"], ACTIONS["discrete"], masked=True)
            self.observation_space = spaces.Dict(
                {"observation": OBSERVATIONS["box"], "action_mask": spaces.Box(0, 1, (4,), np.int8)}
            )

        def _look(self):
            seen, info = super()._look()
            return seen | info, {}

    config, _ = config_of("masked discrete-discrete", tmp_path / "run", normalize_obs=True)
    list(
        paceline.train(config.replace(env_id=Keyed))
    )  # the environment refuses every forbidden action
    agent = paceline.load(tmp_path / "run")
    assert agent.network.obs.size == 3 and agent.network.obs.mask == (4,)
    seen, _ = Keyed().reset(seed=1)
    only = {"observation": seen["observation"], "action_mask": np.int8([0, 0, 1, 0])}
    assert agent.act(only) == 4 and agent.act(only, sample=True) == 4


def test_a_mask_that_allows_nothing_allows_everything():
    observation, action, _ = PAIRS["masked dict-multidiscrete"]
    spec = observation_spec(observation, action_spec(action), {"action_mask": None})
    adapter = ObservationAdapter(spec)
    stored = np.zeros(1, spec.stored[1])
    masks = (np.int8([0, 0, 0]), np.int8([0, 1]), np.int8([0, 0, 0, 0]))
    adapter.write(spec.split(stored), 0, observation.sample(), {"action_mask": masks})
    assert stored["mask"][0].tolist() == [True] * 3 + [False, True] + [True] * 4


@pytest.mark.parametrize(
    "pair",
    [
        "masked dict-discrete",
        pytest.param("image and numbers-discrete", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_compiled_step_takes_whole_rollouts_of_several_parts(pair, tmp_path):
    """No episode ends, so every row counts, and none is copied on its way to the learner."""
    if missing := compiler_missing():
        pytest.skip(missing)
    observation, action, extras = PAIRS[pair]
    env = partial(Anything, observation, action, **extras, length=10_000)
    options = {"algo": "a2c", "compile": "on", "rollout_steps": 5, **ONE_STEP}
    config, _ = config_of(pair, tmp_path / "run", steps=100, **options)
    reports = list(paceline.train(config.replace(env_id=env)))
    assert reports[-1].steps >= 100


def test_a_mask_of_a_policy_without_any_is_refused(tmp_path):
    config, env = config_of("dict-discrete", tmp_path / "run", steps=48)
    list(paceline.train(config))
    seen, _ = env().reset(seed=0)
    with pytest.raises(BadInput, match="without any"):
        paceline.load(tmp_path / "run").act(seen, action_mask=np.ones(4))


def test_masks_that_come_and_go_are_named(tmp_path):
    masked = partial(Late, OBSERVATIONS["box"], ACTIONS["discrete"])
    config, _ = config_of("box-discrete", tmp_path / "late")
    with pytest.raises(paceline.EnvironmentFailed, match="had none in that of the first"):
        list(paceline.train(config.replace(env_id=masked)))


class Late(Anything):
    """Speaks of masks from its second reset on."""

    def reset(self, *, seed=None, options=None):
        seen, info = super().reset(seed=seed)
        self.resets = getattr(self, "resets", 0) + 1
        return seen, info | ({"action_mask": np.ones(4)} if self.resets > 1 else {})


def test_a_mask_in_the_observation_may_be_one_for_each_choice():
    mask = spaces.Tuple([spaces.MultiBinary(3), spaces.MultiBinary(2), spaces.MultiBinary(4)])
    space = spaces.Dict({"seen": OBSERVATIONS["box"], "action_mask": mask})
    spec = observation_spec(space, action_spec(ACTIONS["multidiscrete"]))
    assert (spec.mask, spec.size) == ((3, 2, 4), 3)
    stored = np.zeros(1, spec.stored[1])
    given = (np.int8([0, 1, 1]), np.int8([1, 0]), np.int8([0, 0, 0, 1]))
    ObservationAdapter(spec).write(
        spec.split(stored), 0, {"seen": np.zeros(3), "action_mask": given}, {}
    )
    assert stored["mask"][0].astype(int).tolist() == [0, 1, 1, 1, 0, 0, 0, 0, 1]


def test_masks_of_a_batch_are_never_turned_round():
    spec = observation_spec(
        OBSERVATIONS["box"], action_spec(ACTIONS["discrete"]), {"action_mask": 1}
    )
    stored = np.zeros(3, spec.stored[1])
    with pytest.raises(ValueError, match="action_mask of shape"):
        ObservationAdapter(spec).write(
            spec.split(stored), slice(None), np.zeros((3, 3)), {"action_mask": np.ones((4, 3))}
        )
