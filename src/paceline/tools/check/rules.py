"""What `check` says: levels, topics and texts of its findings, by their codes."""

from __future__ import annotations

from ..findings import Rule, Rules

TOPICS = (
    *("make", "process", "reset", "step", "spaces", "observation", "reward", "flags", "mask"),
    *("ends", "copies", "actions", "seeding", "close", "memory", "info", "speed", "output"),
)
"""In the order in which to fix them: what breaks learning first, then what breaks repeating it."""

FAILS = "a run makes it anew each time, loses the episode, and gives up after ten in a row"
OLD_API = "gymnasium.Env has replaced this interface of the old gym, and training can't use it"
FIX_ERROR = "fix what it names"
NOT_FINITE = "one such number would spoil every weight, so a run stops with exit code 3"
BOUND_ARGUMENT = "find the division, root or logarithm that makes it, and bound its argument"
STEP_FAILS = "the network is built for what the space says; the step fails"
ALL_PARTS = "return every part that observation_space names, and declare every part you return"
USE_BOOL = "return bool(…) for both terminated and truncated"
NOT_REPEATABLE = "a run can be neither repeated nor resumed exactly"
FROM_BOUNDS = "a policy reaches the bounds from its first rollout on"
OWN_GENERATOR = (
    "draw everything random from self.np_random, which super().reset(seed=seed) seeds; no clock, "
    "no np.random, no random"
)
RESET_ALL = "reset all state in reset()"

RULES = Rules(
    {
        # making it, and its process
        "make-raises": Rule(
            *("wrong", "make", "making it raised {error}"),
            *("nothing can be trained on it", FIX_ERROR),
        ),
        "make-batch": Rule(
            *("note", "make", "it comes only as a batch, and was examined as a run sees it"),
            "actions at their bounds, info and close() were not examined: there is no single one",
        ),
        "process-hangs": Rule(
            *("wrong", "process", "it hangs: {place}, nothing came back for {seconds:g} s"),
            "a run replaces a worker that makes no step for worker_timeout, and gives up at last",
            "fix it; if it is only slow, set a longer --worker-timeout, here and for training",
        ),
        "process-died": Rule(
            *("wrong", "process", "its process {reason} {place}{detail}"),
            "it ends the whole process: without workers, the run",
            "fix the native code, or the call of os._exit, that ends the process",
        ),
        # reset() and step()
        "reset-raises": Rule("wrong", "reset", "reset() raised {error}", FAILS, FIX_ERROR),
        "reset-seed": Rule(
            *("wrong", "reset", "reset(seed=…) raised {error}"),
            "every episode starts with a seed of its own, or no run could be repeated",
            "write def reset(self, *, seed=None, options=None), and in it super().reset(seed=seed)",
        ),
        "reset-form": Rule(
            *("wrong", "reset", "reset() returned {value}, not a pair (observation, info)"),
            *(OLD_API, "return observation, {{}} from reset()"),
        ),
        "step-raises": Rule(
            *("wrong", "step", "step() raised {error} at step {step}, for the action {action}"),
            *(FAILS, FIX_ERROR),
        ),
        "step-form": Rule(
            *("wrong", "step"),
            "step() returned {value}, not the five values observation, reward, terminated, "
            "truncated, info",
            OLD_API,
            "return observation, reward, terminated, truncated, info, where terminated means that "
            "the task is over and truncated that time has run out",
        ),
        "step-side-by-side": Rule(
            *("wrong", "step", "it raised {count} times in {steps:,} steps, {envs} side by side"),
            "each time the episode is lost and the environment made anew",
            "see what it raises with paceline train, which shows the first traceback",
        ),
        "run-fails": Rule(
            *("wrong", "step", "{error}", "a run would end with exit code 3", FIX_ERROR),
        ),
        # spaces
        "space-missing": Rule(
            *("wrong", "spaces", "the environment has no {name}"),
            "policies are built from the spaces",
            "set self.{name} in __init__ to one of gymnasium.spaces",
        ),
        "space-unusable": Rule(
            *("wrong", "spaces", "{error}"),
            *("no policy here can use such a space", "encode it, or leave it out"),
        ),
        # observations
        "observation-ok": Rule(
            *("ok", "observation", "all {results:,} observations and rewards fit their spaces"),
        ),
        "observation-structure": Rule(
            *("wrong", "observation", "{what} is {value}, not {expected} ({seen})"),
            *(STEP_FAILS, ALL_PARTS),
        ),
        "observation-missing": Rule(
            *("wrong", "observation", "{what} lacks {key} ({seen})", STEP_FAILS, ALL_PARTS),
        ),
        "observation-shape": Rule(
            *("wrong", "observation", "{what} has shape {shape}, its space {expected} ({seen})"),
            STEP_FAILS,
            "declare the shape that you return, or reshape before returning",
        ),
        "observation-type": Rule(
            *("wrong", "observation", "{what} is {value}, of type {type}, in {space} ({seen})"),
            "it can't be stored as numbers of its space",
            "return what the space describes, such as np.asarray(observation, np.float32)",
        ),
        "observation-fraction": Rule(
            *("wrong", "observation", "{what} is {value}, in a Box of {dtype} ({seen})"),
            "stored as whole numbers, they lose what is after the point",
            "declare a Box of np.float32, or return whole numbers",
        ),
        "observation-nan": Rule(
            *("wrong", "observation", "{what} is {value}, not finite ({seen})"),
            *(NOT_FINITE, BOUND_ARGUMENT),
        ),
        "observation-choice": Rule(
            *("wrong", "observation", "{what} is {value}, which is not in {space} ({seen})"),
            "a run ends at the first of these, with exit code 3",
            "make the space as large as the largest value, and mind the start of a Discrete",
        ),
        "observation-outside": Rule(
            *("risky", "observation"),
            "{what} is {value:.6g} at entry {entry}, outside {low:.6g} to {high:.6g} ({seen})",
            "whatever scales or clips by the bounds gets wrong numbers",
            "widen low and high of the Box (np.inf if you do not know), or clip the observation",
        ),
        "observation-near": Rule(
            *("note", "observation"),
            "{what} is {value:.6g} at entry {entry}, outside {low:.6g} to {high:.6g} ({seen})",
            "it is not by much, and Paceline does not scale by the bounds",
            "widen low and high of the Box a little",
        ),
        "observation-dtype": Rule(
            *("note", "observation", "{what} is of type {type}, its space of {dtype} ({seen})"),
            "it is converted at every step, which takes a little time",
            "return the type that the space declares, best np.float32 (np.uint8 for images)",
        ),
        "observation-undeclared": Rule(
            *("note", "observation", "{what} has {key}, which its space does not name ({seen})"),
            "the policy never sees it",
            "add it to observation_space, or leave it out",
        ),
        "observation-aliased": Rule(
            *("note", "observation", "step() changed the observation returned before it"),
            "Paceline copies it at once, but wrappers and libraries that keep observations would "
            "learn from one that was not seen",
            "return self.state.copy(), or build a new array at every step",
        ),
        "observation-constant": Rule(
            *("note", "observation", "the observation was the same in all {steps:,} steps"),
            "a policy that always sees the same can only learn one answer",
            "build observations anew from the state",
        ),
        "observation-large": Rule(
            *("note", "observation", "numbers of the observation reach {value:.3g}"),
            "networks start with weights for numbers around 1, and learn slowly from large ones",
            "train with --normalize-obs, or divide by their usual size",
        ),
        # rewards, flags, masks, info
        "reward-type": Rule(
            *("wrong", "reward", "the reward is {value} ({seen})"),
            *("there is nothing to learn from what is not a number", "return a float"),
        ),
        "reward-nan": Rule(
            *("wrong", "reward", "the reward is {value} ({seen})", NOT_FINITE, BOUND_ARGUMENT),
        ),
        "reward-array": Rule(
            *("risky", "reward", "the reward is {value} ({seen})"),
            "libraries disagree about an array in place of a number",
            "return float(reward)",
        ),
        "reward-zero": Rule(
            *("note", "reward", "the reward was 0 in all {steps:,} steps with random actions"),
            "until something is rewarded, an on-policy learner has nothing to learn from",
            "reward progress on the way to the goal, or start some episodes near it",
        ),
        "reward-large": Rule(
            *("note", "reward", "rewards reach {value:.3g}"),
            "the value loss is their square, and outweighs that of the policy",
            "train with --normalize-return, or divide the reward",
        ),
        "flag-value": Rule(
            *("wrong", "flags", "{place} is {value}, neither true nor false ({seen})"),
            "whatever is not 0 counts as true, so that episodes end by accident",
            USE_BOOL,
        ),
        "flag-type": Rule(
            *("note", "flags", "{place} is {value}, not a bool ({seen})"),
            "Paceline takes it for what it means; other libraries may not",
            USE_BOOL,
        ),
        "mask-length": Rule(
            *("wrong", "mask", "action_mask has {entries} for {actions} actions ({seen})"),
            "it can't say which actions are allowed; the step fails",
            "give one entry for each action, 1 where it is allowed",
        ),
        "mask-empty": Rule(
            *("wrong", "mask", "action_mask allows no action at all ({seen})"),
            "where nothing is allowed, everything is: forbidden actions are taken",
            "allow at least one action in every state, or end the episode there",
        ),
        "mask-lost": Rule(
            *("risky", "mask"),
            "the info of the first reset() has an action_mask, that of a later {call}() has none",
            "where it is missing, everything is allowed",
            "give an action_mask in every info, of reset() and of step()",
        ),
        "mask-late": Rule(
            *("wrong", "mask"),
            "the info of the first reset() has no action_mask, that of a later {call}() has one",
            "masks are found by the first reset; those that come later are not used",
            "give an action_mask in the info of reset() too",
        ),
        "info-large": Rule(
            *("note", "info", "info holds {megabytes:.1f} MB ({seen})"),
            "making it takes time at every step, and nothing reads it",
            "put large things into info only when they are asked for",
        ),
        # ends of episodes
        "ends-ok": Rule(
            *("ok", "ends"),
            "{episodes:,} episodes of {shortest:,} to {longest:,} steps: {terminated:,} "
            "terminated, {truncated:,} truncated",
        ),
        "ends-unseen": Rule(
            *("note", "ends"),
            "no episode ended in {steps:,} random steps, so that ends were not checked; the time "
            "limit is {limit}",
            "a time limit reported as terminated, or a reset within the last step, would not be "
            "seen",
            "check for longer, with --seconds 20 or more, or shorter episodes, with "
            "--env.time-limit",
        ),
        "ends-never": Rule(
            *("risky", "ends"),
            "no episode ended in {steps:,} random steps, and there is no time limit",
            "a run would be one endless episode: no return to report, few states near the start",
            "give a limit with --env.time-limit 1000, or max_episode_steps=1000 where it is "
            "registered",
        ),
        "ends-self-reset": Rule(
            *("wrong", "ends", "the environment resets itself in the step that ends an episode"),
            "the observation returned is the first of the next episode, and a truncated episode is "
            "valued by it",
            "return the last observation of the episode, and leave resetting to the caller",
        ),
        "ends-shows-next": Rule(
            *("note", "ends"),
            "the step that ends an episode shows the next one's first observation, and every end "
            "counts as terminated",
            "where it was a time limit that ended it, states near the limit are undervalued",
            "mind it where episodes get that long; the suite does not tell more about ends",
        ),
        "ends-both-flags": Rule(
            *("risky", "ends"),
            "terminated and truncated were both true at the end of all {episodes} episodes",
            "terminated wins, so that the future after a mere time limit counts as worth nothing",
            "set terminated where the task is over, truncated where only time has run out",
        ),
        "ends-time-limit": Rule(
            *("risky", "ends"),
            "{count} of {episodes} episodes ended after exactly {length:,} steps, by terminated, "
            "as if by a time limit",
            "after terminated the future counts as worth nothing, so that states near the limit "
            "are undervalued, which the policy can't see coming",
            "return it as truncated, or leave it out and use --env.time-limit {length}; if it is "
            "the task's own horizon, terminated is right, but show the time that is left in the "
            "observation",
        ),
        "ends-horizon": Rule(
            *("note", "ends"),
            "{count} of {episodes} episodes ended after exactly {length:,} steps, by terminated",
            "that is right if the task itself is over then, and wrong if only time has run out",
            "if it is a time limit, return it as truncated; a task's own horizon is right as it "
            "is if the observation shows the time that is left",
        ),
        "ends-first-step": Rule(
            *("note", "ends", "all {episodes} episodes ended with their first step"),
            "that is right for a bandit; in any other task there is no future to learn about",
            "see what makes the first step end the episode",
        ),
        "ends-stay-ended": Rule(
            *("wrong", "ends"),
            "the first episode had {length:,} steps, and all {episodes} after it only one",
            "nothing but the first step of an episode would ever be learned",
            f"{RESET_ALL}, also what marks the episode as over",
        ),
        # actions
        "action-raises": Rule(
            *("wrong", "actions", "with {name} {text}"),
            *(FROM_BOUNDS, FIX_ERROR),
        ),
        "action-nan": Rule(
            *("wrong", "actions"),
            "with {name} an observation or reward was NaN or infinite at step {step}",
            f"{FROM_BOUNDS}, and the run ends there",
            "keep the simulation stable for every action that the space allows",
        ),
        "action-unbounded": Rule(
            *("note", "actions", "{count} of {size} action numbers have no finite bounds"),
            "a policy starts with numbers around 0, deviation 1, and reaches others slowly",
            "give low and high that an action may reach; −1 … 1 of the policy is scaled to them",
        ),
        "action-range": Rule(
            *("risky", "actions", "an action number may be anything in a range of {width:.3g}"),
            "−1 … 1 of the policy is scaled to the whole range, so that nearly every action is far "
            "out",
            "give the bounds that are of use, or −np.inf and np.inf where there are none",
        ),
        "action-empty-range": Rule(
            *("risky", "actions", "action number {entry} has low {low:g}, not below its high"),
            "there is nothing to choose",
            "give low < high for every number, or leave it out of the action space",
        ),
        "action-changed": Rule(
            *("note", "actions", "step() changed the action that it was given"),
            "Paceline gives it a copy, but a library that keeps actions would learn from others "
            "than it chose",
            "leave the action as it is: action = np.clip(action, low, high), without out=",
        ),
        "action-ignored": Rule(
            *("note", "actions", "other actions gave the same {results} results"),
            "where no action changes anything there is nothing to learn",
            "see that step() uses its action",
        ),
        # seeds
        "seeding-ok": Rule(
            *("ok", "seeding", "the same seed gives the same {results} results{others}"),
        ),
        "seeding-differs": Rule(
            *("wrong", "seeding"),
            "reset(seed={seed}) and the same actions, in two instances, gave different episodes: "
            "{difference}; {cause}",
            *(NOT_REPEATABLE, OWN_GENERATOR),
        ),
        "seeding-inexact": Rule(
            *("note", "seeding"),
            "reset(seed={seed}) and the same actions, in two instances, gave episodes that drift "
            "apart: {difference}",
            f"nothing wrong is learned, but {NOT_REPEATABLE}",
            "where the simulator computes with threads or on a GPU, make its order fixed",
        ),
        "seeding-shared": Rule(
            *("risky", "seeding"),
            "{call}() uses or seeds {generators}, which everything in the process shares",
            "environments side by side, and whatever else draws from it, change each other's "
            "episodes",
            OWN_GENERATOR,
        ),
        "seeding-carried-over": Rule(
            *("wrong", "seeding"),
            "reset(seed={seed}) in a used instance gave another episode than in a fresh one: "
            "{difference}",
            "something is carried over from one episode to the next: a resumed run goes on "
            "differently, and evaluations depend on what came before",
            f"{RESET_ALL}, and seed every generator there",
        ),
        "seeding-drifts": Rule(
            *("note", "seeding"),
            "reset(seed={seed}) in a used instance gave an episode that drifts away from that of a "
            "fresh one: {difference}",
            "nothing wrong is learned, but a resumed run can't replay an open episode, and starts "
            "a new one",
            "make the simulator's world anew in reset(), not only what is in it",
        ),
        "seeding-process": Rule(
            *("wrong", "seeding"),
            "another process with the same seed and actions saw other episodes: something depends "
            "on the order of a set, on hash() of a text, on a process number or on a file",
            "workers are other processes, and a resumed run replays its episodes in new ones",
            "sort sets before iterating over them, and draw everything random from self.np_random",
        ),
        "seeding-batch": Rule(
            *("risky", "seeding"),
            "the same seed and actions, in two batches, gave something else from row {row} on",
            NOT_REPEATABLE,
            "take it from another suite, where a run has to be repeated",
        ),
        "seeding-constant": Rule(
            *("note", "seeding", "{seeds} seeds gave the same {results} results"),
            "that is right if nothing in it is random; else a policy learns one episode by heart",
            "if it should be random, draw from self.np_random, which super().reset(seed=seed) "
            "seeds, and from no generator with a fixed seed; of a suite, see --env.kwargs",
        ),
        "copies-interfere": Rule(
            *("wrong", "copies"),
            "an episode changed while another instance was stepped beside it: {difference}",
            "a run steps many in one process, and each would disturb the others",
            "keep all state in self: no class attributes, module variables or global generators",
        ),
        # resources
        "close-raises": Rule(
            *("risky", "close", "close() raised {error}"),
            "what it holds may stay open, and every run ends with a warning",
            "let close() succeed whatever state the environment is in",
        ),
        "close-processes": Rule(
            *("risky", "close", "{count} of its processes outlived close(): {names}"),
            "runs make and close environments, and each time more of them stay",
            "end in close() what __init__ or reset() has started",
        ),
        "memory-grows": Rule(
            *("risky", "memory"),
            "memory grew by {grown} while {steps:,} steps were made, and never stopped growing",
            "ten million steps would take about {projected} more",
            "look for a list that only grows, such as a history that reset() does not empty; a "
            "cache stops growing some time: see with --seconds 60",
        ),
        "speed-resets": Rule(
            *("note", "speed"),
            "{share:.0%} of the time goes into resets, {reset_ms:.3g} ms each, against "
            "{step_ms:.3g} ms for a step",
            "with random actions episodes are short; the share falls as they get longer",
            "load files and build what never changes in __init__, not in reset()",
        ),
        "speed-slow": Rule(
            *("note", "speed", "{rate:,.3g} steps/s on one core"),
            "a million steps take {hours:.0f} hours on one core",
            "profile step(); render images only if render_mode asks for them",
        ),
        "speed-busy": Rule(
            *("note", "speed", "other programs had the CPU for {share:.0%} of the measurement"),
            "that time was left out, but the speed is less certain",
            "measure again when the machine is idle",
        ),
        "speed-threads": Rule(
            *("note", "speed", "it keeps {cpus:.1f} CPUs busy: it has threads of its own"),
            "workers beside each other would then wait for CPUs",
            "give it one thread, and leave the other CPUs to workers",
        ),
        "output": Rule(
            *("note", "output", "it wrote {lines} lines to the terminal, first: {first}"),
            "with many environments a run's own lines are lost among them, and writing takes time",
            "leave out the print, or fix what it warns of; logging can be turned off from outside",
        ),
    }
)
