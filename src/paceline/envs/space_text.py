"""Specs in a few words. They may be a stranger's: nothing of the size they claim is allocated."""

from __future__ import annotations

from collections.abc import Sequence

from .spaces import ACTION_MASK, ActionSpec, Leaf, ObservationSpec, Specs, path_text

LONGEST = 300


def mismatch(ours: Specs, theirs: Specs) -> tuple[str, str, str] | None:
    """Which of "observations" and "actions" differ, ours and theirs; None if neither do."""
    if ours[0] != theirs[0]:
        return "observations", observation_text(ours[0]), observation_text(theirs[0])
    if ours[1] != theirs[1]:
        return "actions", action_text(ours[1]), action_text(theirs[1])
    return None


def observation_text(spec: ObservationSpec) -> str:
    """Leaf by leaf where there are several. Bounds of a Box are not part of a spec."""
    shown = [f"{path_text(leaf.path)} {_leaf_text(leaf)}".lstrip() for leaf in spec.leaves]
    if spec.mask:
        shown.append(f"an {ACTION_MASK} of {sum(spec.mask)}")
    return _short(", ".join(shown))


def action_text(spec: ActionSpec) -> str:
    if spec.kind == "discrete":
        return _choices((spec.size,), (spec.start,), ())
    if spec.kind == "multi":
        return _short(_choices(spec.sizes, spec.starts, spec.shape))
    low, high = (
        bound[0] if len(set(bound)) == 1 else list(bound) for bound in (spec.low, spec.high)
    )
    return _short(f"Box({low}, {high}, {spec.shape}, {spec.dtype})")


def _leaf_text(leaf: Leaf) -> str:
    if leaf.kind != "choices":
        return f"Box({leaf.shape}, {leaf.dtype})"
    return _choices(leaf.sizes, leaf.starts, leaf.shape)


def _choices(sizes: Sequence[int], starts: Sequence[int], shape: tuple[int, ...]) -> str:
    if shape == ():
        return f"Discrete({sizes[0]}, start={starts[0]})" if starts[0] else f"Discrete({sizes[0]})"
    start = f", start={list(starts)}" if any(starts) else ""
    return f"MultiDiscrete({list(sizes)}{start}, shape={shape})"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
