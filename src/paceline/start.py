"""start_from: a new run that begins with another's weights."""

from __future__ import annotations

import json
import logging

from .agent import from_checkpoint, locate, network_facts
from .arrays import part
from .build import Parts
from .errors import BadInput
from .files import shown

log = logging.getLogger("paceline")

IRRELEVANT = ("log_std_init",)
"""What says how weights were drawn, and nothing of how they are used."""


def start_from(source: str, parts: Parts) -> None:
    """Take over the weights and the running statistics of a saved policy; nothing else."""
    path, found = locate(source)
    from_checkpoint(path, found, vars(parts.network))  # refuses what is no policy
    theirs = found.facts["network"]
    ours = json.loads(json.dumps(network_facts(parts.network)))
    for name in ours:
        if name not in IRRELEVANT and theirs.get(name) != ours[name]:
            raise BadInput(
                f"init_from {shown(source)}: its {name} is {_short(theirs.get(name))}, and that of "
                f"this run is {_short(ours[name])}; they have to be the same"
            )
    parts.learner.adopt(found.weights, part("learner.", found.arrays))
    if parts.sampler is not None:
        parts.sampler.publish(parts.learner.weights, parts.learner.version)
    if parts.sync.rank == 0:
        log.info("starting from the weights of %s", shown(path))


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]} …"
