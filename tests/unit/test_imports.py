"""Imports point one way, and what only acts or only lists never imports torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

import paceline

ROOT = Path(paceline.__file__).parent

LAYERS = [
    "processes",
    "storage",
    "config",
    "envs",
    "policy",
    "distributed",
    "learning",
    "samplers",
    "run",
    "ranks",
    "cli",
    "tools",
]
"""Folders of the package. A module may import those of its own folder and of earlier ones."""
LEVEL = {name: level for level, name in enumerate(LAYERS)}

TOP = {"errors": -1, "rollout": -1, "ring": "run", "session": "ranks", "__main__": "cli"}
"""Files beside the folders: two that all may import, and the layers that the others belong to."""
LEVEL |= {name: LEVEL.get(layer, -1) for name, layer in TOP.items()}

# Policies and environments know nothing of each other's work, nor do samplers and syncs.
STRANGERS = [{"samplers", "distributed"}]


def imports_of(path):
    """(module of the package, whether it is imported when the file is) for every import."""
    package = ".".join(["paceline", *path.relative_to(ROOT).parent.parts])
    found = []

    def visit(node, at_import):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                module = resolve_name("." * node.level + (node.module or ""), package)
                of_folder = module == "paceline" or not node.module
                names = [f"{module}.{name}" for name in names] if of_folder else [module]
            inside = [name for name in names if name.startswith("paceline.")]
            found.extend((name.removeprefix("paceline."), at_import) for name in inside)
        deeper = at_import and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            visit(child, deeper)

    visit(ast.parse(path.read_text(encoding="utf-8")), True)
    return found


FILES = sorted(
    path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem != "__init__"
)


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def top(module):
    """`policy.actor` → `policy`."""
    return module.split(".")[0]


def test_every_module_is_in_a_folder_that_is_a_layer():
    assert {top(name_of(path)) for path in FILES} == set(LEVEL)
    assert all((ROOT / name).is_dir() for name in LAYERS)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_one_way(path):
    own = top(name_of(path))
    for module, _ in imports_of(path):
        other = top(module)
        assert LEVEL[other] <= LEVEL[own], f"{name_of(path)} imports {module}, of a later layer"
        for group in STRANGERS:
            together = own != other and {own, other} <= group
            assert not together, f"{name_of(path)} imports {module}, a stranger"


def test_modules_import_each_other_in_no_circle():
    found = {name_of(path).removesuffix(".__init__"): imports_of(path) for path in FILES}
    graph = {
        name: {m if m in found else m.rpartition(".")[0] for m, at_import in modules if at_import}
        for name, modules in found.items()
    }
    for name, others in graph.items():
        others -= {name, ""}
    TopologicalSorter(graph).prepare()  # raises CycleError


def in_fresh_process(code):
    """Run `code` in a new interpreter; its last line of output."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


LIGHT = """config.schema config.resolve config.flags cli.listing cli.commands tools.doctor.examine
tools.bench.compare.command tools.bench.bench rollout envs envs.vec envs.env_columns policy.actor
samplers.unroll"""


def test_importing_listing_and_configuring_never_import_torch():
    modules = ", ".join(f"paceline.{name}" for name in LIGHT.split())
    code = f"""
import sys, paceline, {modules}
lists = paceline.cli.listing.LISTS
lines = [line for name in lists for line in lists[name]()]
config = paceline.Config(env_id="CartPole-v1")
assert lines and config.num_envs
print('torch' in sys.modules)
"""
    assert in_fresh_process(code) == "False"


def test_acting_in_cartpole_never_imports_torch():
    code = """
import sys
import numpy as np
import paceline.envs.vec
from paceline.envs import source_of
from paceline.envs.env_columns import EnvColumns
from paceline.policy.actor import NumpyActor, make_actor
from paceline.policy.network import NetworkSpec
from paceline.processes.heartbeat import Heartbeat
from paceline.rollout import Rollout
from paceline.samplers.unroll import unroll

with EnvColumns(source_of("CartPole-v1").one, 2) as columns:
    obs, act = columns.obs_spec, columns.act_spec
    actor = make_actor(NetworkSpec(obs, act), 2)
    assert type(actor) is NumpyActor
    size = 4 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2
    actor.load(np.random.default_rng(0).normal(scale=0.1, size=size).astype(np.float32))
    out = Rollout.allocate(50, 2, obs.stored, act.stored)
    columns.reset(out.obs[-1])
    head = np.empty((50, 2, 2), np.float32)
    out.start_next()
    carry, noise = np.zeros((2, 0), np.float32), actor.distribution.noise(0, 0, 0, 2, 50)
    unroll(columns, actor, noise, out, head, Heartbeat(), carry)
assert np.isfinite(out.obs).all() and np.isfinite(out.logp).all() and out.valid.sum() > 90
print('torch' in sys.modules)
"""
    assert in_fresh_process(code) == "False"


def test_importing_the_package_does_not_import_gymnasium():
    assert in_fresh_process("import sys, paceline; print('gymnasium' in sys.modules)") == "False"
