"""In every space: training, evaluation, resuming to the byte, acting on one and on many."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from environments import ACTIONS, OBSERVATIONS, Anything
from gymnasium import spaces
from saved_runs import PLAIN, assert_resumes_to_the_byte, metrics_of

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
MEMORIES = [None, "lstm", "gru", "mingru"]


def env_of(pair, **more):
    observation, action, extras = PAIRS[pair]
    return partial(Anything, observation, action, **extras, **more)


def config_of(env, folder, **options):
    defaults = {
        **PLAIN,
        "num_envs": 3,
        "rollout_steps": 16,
        "minibatches": 2,
        "epochs": 2,
        "total_steps": 192,
        "hidden": (16,),
        "eval_episodes": 3,
    }
    return paceline.Config(env_id=env, output_dir=str(folder), **(defaults | options))


def trained(env, folder, **options):
    """The reports of a run, and the policy that came of it."""
    reports = list(paceline.train(config_of(env, folder, **options)))
    return reports, paceline.load(folder)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.startswith(("dict", "masked"))])
def test_impala_knows_the_probability_of_every_kind_of_action(pair, memory, tmp_path):
    """The learner's ratio to the policy that acted is 1 where both are the same."""
    env = env_of(pair)
    config = config_of(env, tmp_path, algo="impala", log_every=1, memory=memory, **ONE_STEP)
    assert_resumes_to_the_byte(config, tmp_path, env_id=env)
    ratios = [line["rho_mean"] for line in metrics_of(tmp_path / "whole")]
    assert len(ratios) >= 4
    assert ratios == pytest.approx([1.0] * len(ratios), abs=1e-5)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("pair", PAIRS)
def test_it_trains_resumes_to_the_byte_evaluates_and_acts(pair, memory, tmp_path):
    env = env_of(pair)
    options = {"memory": memory, "minibatches": 3 if memory else 2}
    assert_resumes_to_the_byte(config_of(env, tmp_path, **options), tmp_path, env_id=env)
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
    values = agent.values(adapter.read(batch))
    together = agent.act(adapter.read(batch))
    assert together.shape == (6, *one.action_space.shape)
    assert together.dtype == one.action_space.dtype
    for action, value, observation in zip(together, values, singles, strict=True):
        agent.reset()
        np.testing.assert_allclose(value, agent.values(observation), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(action, agent.act(observation), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["masked discrete-discrete", "masked dict-multidiscrete"])
@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_a_compiled_step_respects_masks_too(pair, algo, tmp_path):
    if missing := compiler_missing():
        pytest.skip(missing)
    options = {"algo": algo, **(ONE_STEP if algo == "a2c" else {})}
    compiled, eager = (
        trained(env_of(pair), tmp_path / choice, compile=choice, **options)[1].weights
        for choice in ("on", "off")
    )
    for name in eager:
        np.testing.assert_allclose(compiled[name], eager[name], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["masked dict-discrete", "image and numbers-discrete"])
def test_a_compiled_step_takes_whole_rollouts_of_several_parts(pair, tmp_path):
    """No episode ends, so every row counts, and none is copied on its way to the learner."""
    if missing := compiler_missing():
        pytest.skip(missing)
    options = {"algo": "a2c", "compile": "on", "rollout_steps": 5, **ONE_STEP}
    env = env_of(pair, length=10_000)
    reports, _ = trained(env, tmp_path / "run", total_steps=100, **options)
    assert reports[-1].steps >= 100


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
    reports, agent = trained(env, tmp_path / "run")
    assert all(abs(report.entropy) < 1e-6 and report.approx_kl < 1e-6 for report in reports)
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

    # The environment refuses every forbidden action.
    _, agent = trained(Keyed, tmp_path / "run", normalize_obs=True)
    assert agent.network.obs.size == 3 and agent.network.obs.mask == (4,)
    seen, _ = Keyed().reset(seed=1)
    only = {"observation": seen["observation"], "action_mask": np.int8([0, 0, 1, 0])}
    assert agent.act(only) == 4 and agent.act(only, sample=True) == 4


MULTI = action_spec(ACTIONS["multidiscrete"])
MASK = spaces.Tuple([spaces.MultiBinary(3), spaces.MultiBinary(2), spaces.MultiBinary(4)])


@pytest.mark.parametrize(
    ("given", "stored"),
    [("011 10 0001", "011100001"), ("000 01 0000", "111011111")],
    ids=["some", "none of a choice"],
)
@pytest.mark.parametrize("where", ["info", "observation"])
def test_a_mask_may_be_one_for_each_choice_and_where_it_allows_nothing_allows_all(
    where, given, stored
):
    mask = {"action_mask": tuple(np.array(list(piece), np.int8) for piece in given.split())}
    space, seen, info = OBSERVATIONS["box"], np.zeros(3), mask
    if where == "observation":
        space = spaces.Dict({"seen": space, "action_mask": MASK})
        seen, info = {"seen": seen, **mask}, {}
    spec = observation_spec(space, MULTI, info)
    assert (spec.mask, spec.size) == ((3, 2, 4), 3)
    found = np.zeros(1, spec.stored[1])
    ObservationAdapter(spec).write(spec.split(found), 0, seen, info)
    assert "".join(map(str, found["mask"][0].astype(int))) == stored


def test_masks_of_a_batch_are_never_turned_round():
    mask = {"action_mask": np.ones((4, 3))}
    spec = observation_spec(OBSERVATIONS["box"], action_spec(ACTIONS["discrete"]), mask)
    views = spec.split(np.zeros(3, spec.stored[1]))
    with pytest.raises(ValueError, match="action_mask of shape"):
        ObservationAdapter(spec).write(views, slice(None), np.zeros((3, 3)), mask)


def test_a_mask_of_a_policy_without_any_is_refused(tmp_path):
    env = env_of("dict-discrete")
    _, agent = trained(env, tmp_path / "run", total_steps=48)
    seen, _ = env().reset(seed=0)
    with pytest.raises(BadInput, match="without any"):
        agent.act(seen, action_mask=np.ones(4))


class Late(Anything):
    """Speaks of masks from its second reset on."""

    resets = 0

    def reset(self, *, seed=None, options=None):
        seen, info = super().reset(seed=seed)
        self.resets += 1
        return seen, info | ({"action_mask": np.ones(4)} if self.resets > 1 else {})


def test_masks_that_come_and_go_are_named(tmp_path):
    env = partial(Late, OBSERVATIONS["box"], ACTIONS["discrete"])
    with pytest.raises(paceline.EnvironmentFailed, match="had none in that of the first"):
        trained(env, tmp_path / "late")
