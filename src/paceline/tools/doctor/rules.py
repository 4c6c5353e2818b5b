"""What `doctor` says, by the codes of its findings."""

from pathlib import Path

from ..findings import Rules

RULES = Rules.read(Path(__file__).with_name("rules.yaml"))
found = RULES.found
