"""Where environments come from. A suite is one file with a function from name to environment."""

from .maker import EnvId, env_maker

__all__ = ["EnvId", "env_maker"]
