"""sb3-contrib's side: RecurrentPPO, with an LSTM for the actor and one for the critic."""

from __future__ import annotations

from functools import partial
from typing import Any

from cases import Setting
from sb3 import common, of_ppo, stable_baselines3
from sb3_contrib import RecurrentPPO
from worker import serve

SIZE = 64


def algorithm(setting: Setting, env: Any) -> RecurrentPPO:
    options = common(setting, env) | {"policy": "MlpLstmPolicy"}
    options["policy_kwargs"] |= {"lstm_hidden_size": SIZE, "enable_critic_lstm": True}
    return RecurrentPPO(**options, **of_ppo(setting))


if __name__ == "__main__":
    serve(partial(stable_baselines3, make=algorithm))
