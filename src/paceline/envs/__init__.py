"""Environments: spaces, adapters, columns; each suite in `suites/` maps a name to a `Source`."""

from __future__ import annotations

from .columns import Columns
from .source import EnvId, Source, source_of

__all__ = ["Columns", "EnvId", "Source", "source_of"]
