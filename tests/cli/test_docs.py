"""What the documentation says can be done, can: its snippets run, its flags, links and tables hold.

A page is one session. Its ```python blocks and the `paceline` lines of its ```bash blocks run in
order, in one directory, on budgets made small. A block that begins with `# name.py` is a file that
the reader saves. A block after the line `<!-- no-run -->`, or without a language, is only checked
for its flags.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import gymnasium as gym
import pytest
import yaml

from paceline.cli import commands as cli
from paceline.config.flags import config_parser
from paceline.run.directory import CHANGEABLE
from paceline.run.report import LEARNING, Report
from paceline.tools.bench import bench_plan, scale_plan, tune_plan

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "decisions"),
]
BLOCK = re.compile(r"^(<!-- no-run -->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.M)
"""A fenced block: whether it is not to run, its language, its text."""
FILE = re.compile(r"# (\w+\.py)\n")
"""First line of a block that the reader saves as a file."""
SHRINK = 50
SMALLEST = 512
OUR_FLAGS = {"--config", "--help", "--checkpoint", "--episodes", "--sampled", "--env-id"}
OUR_FLAGS |= {"--by", "--at", "--json", "--seeds"}
OUR_FLAGS |= set(config_parser()._option_string_actions)
for _command in (scale_plan, bench_plan, tune_plan):
    OUR_FLAGS |= set(_command.OPTIONS)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with the line it begins at."""

    language: str
    text: str
    line: int
    runs: bool

    @property
    def commands(self):
        """Arguments of each `paceline` line, without the variables set before it and comments."""
        joined = self.text.replace("\\\n", " ")
        lines = [re.sub(r"^[A-Z]+=\S+ ", "", line) for line in joined.splitlines()]
        return [shlex.split(x, comments=True)[1:] for x in lines if x.startswith("paceline ")]


def blocks_of(page):
    text, blocks = page.read_text(encoding="utf-8"), []
    assert "```" not in prose(page), f"{page}: a block does not end"
    for found in BLOCK.finditer(text):
        marked, language, content = found.groups()
        line = text.count("\n", 0, found.start(3)) + 1
        blocks.append(Block(language or "bash", content, line, bool(language) and not marked))
    return blocks


def prose(page):
    """The text of a page without its blocks."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def named(page):
    return str(page.relative_to(ROOT))


def smaller(text):
    return str(max(SMALLEST, int(text.replace("_", "")) // SHRINK))


def quick(arguments):
    """The command on a budget of a second or so."""
    command, *rest = arguments
    line = " ".join(shlex.quote(word) for word in rest)
    steps = r"(--(?:total-steps|eval-every|save-every) )([\d_]+)"
    line = re.sub(steps, lambda found: found[1] + smaller(found[2]), line)
    line = re.sub(r"--duration \S+", "--total-steps 1000", line)
    line = re.sub(r"--total-iters \d+", "--total-iters 2", line)
    line = re.sub(r"--(episodes|seeds) \d+", r"--\1 2", line)
    if command == "train" and "--help" not in line:
        line += " --eval-episodes 2 --track none"
        line += "" if "--total-" in line else " --total-steps 1000"
    return [command, *shlex.split(line)]


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A directory to follow a page in: the reader's modules in it can be imported."""
    folder = tmp_path / "session"
    folder.mkdir()
    shutil.copytree(ROOT / "configs", folder / "configs")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr("paceline.run.choices.available_cpus", lambda: 1)  # others test beside us
    known = set(gym.registry)
    yield folder
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
    for name in set(gym.registry) - known:
        entry = gym.registry[name].entry_point
        module = entry.partition(":")[0] if isinstance(entry, str) else entry.__module__
        if module not in sys.modules:  # an imported package registers its own only once
            del gym.registry[name]


def with_code(page):
    return [block for block in blocks_of(page) if block.language in ("python", "bash")]


def save_files(page, folder):
    """Save what a page tells its reader to save."""
    for block in with_code(page):
        if name := FILE.match(block.text):
            (folder / name[1]).write_text(block.text, encoding="utf-8")


@pytest.mark.parametrize("page", [page for page in PAGES if with_code(page)], ids=named)
def test_a_page_can_be_followed_from_top_to_bottom(page, session, capsys):
    names = {"__name__": "__main__"}
    if page.name == "README.md":
        # The run that its snippet loads.
        train = shlex.split("train --env-id Acrobot-v1 --output-dir runs/acrobot")
        assert cli.run(quick(train)) == 0
    save_files(page, session)
    for block in with_code(page):
        if not block.runs or FILE.match(block.text):
            continue
        if block.language == "python":
            steps = r"(total_steps=)([\d_]+)"
            text = re.sub(steps, lambda found: found[1] + smaller(found[2]), block.text)
            exec(compile("\n" * (block.line - 1) + text, str(page), "exec"), names)
            continue
        for arguments in block.commands:
            code = cli.run(quick(arguments))
            said = f"exits with {code}\n{capsys.readouterr()}"
            assert code == 0, f"{named(page)}, line {block.line}: {arguments} {said}"


COMMANDS = [
    pytest.param(page, arguments, id=f"{named(page)}:{block.line}:{number}")
    for page in PAGES
    for block in with_code(page)
    if block.language == "bash"
    for number, arguments in enumerate(block.commands)
]


class WorkBegins(Exception):
    """Raised in place of a command's work, once its arguments are understood."""


WORK = {
    "train": "paceline.session.train",
    "train --seeds": "paceline.tools.bench.seeds.claim",
    "resume": "paceline.run.saved.open_run",
    "eval": "paceline.session.evaluate_saved",
    "scale": "paceline.tools.bench.scale.run",
    "compare": "paceline.tools.bench.compare.command.find_runs",
    "bench": "paceline.tools.bench.bench.run",
    "tune": "paceline.tools.bench.tune.run",
    "check": "paceline.tools.check.report.check",
}
"""What each command calls after reading its arguments; the others have no work to spare."""


@pytest.mark.parametrize(("page", "arguments"), COMMANDS)
def test_every_command_of_the_pages_is_understood(page, arguments, monkeypatch, tmp_path, capsys):
    """The real command line, up to where the work would begin."""

    def begin(*given, **_):
        raise WorkBegins(*given)

    for function in WORK.values():
        monkeypatch.setattr(function, begin)
    monkeypatch.setattr("paceline.cli.train.follow", lambda start, _: start(lambda: False))
    monkeypatch.setattr("paceline.tools.bench.bench_plan.remembered", lambda _: [])
    monkeypatch.setattr("paceline.envs.source_of", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "my_config.py").write_text("import paceline\nconfig = paceline.Config()\n")
    save_files(page, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    if arguments[0] not in WORK or "--help" in arguments:
        assert cli.run(arguments) == 0, capsys.readouterr()
        return
    with pytest.raises(WorkBegins) as begun:
        code = cli.run(arguments)
        pytest.fail(f"exit code {code}: {capsys.readouterr()}")
    if arguments[0] == "resume":
        _, changes = begun.value.args
        assert changes.keys() <= CHANGEABLE


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_flag_in_the_text_exists(page):
    spans = re.findall(r"`((?!python |pip )[^`\n]+)`", prose(page))
    flags = {flag for span in spans for flag in re.findall(r"(?<![\w-])--[a-z][\w.-]*", span)}
    assert flags <= OUR_FLAGS, sorted(flags - OUR_FLAGS)


def load_generator():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_made_from_code_are_not_stale():
    assert load_generator().main(["--check"]) == 0, "run python docs/generate.py"


@pytest.mark.parametrize(
    ("name", "written", "stale"),
    [
        ("configuration.md", r"\| `--gamma` \| `0.99` \|", "| `--gamma` | `0.9` |"),
        ("architecture.md", r"ring\.py#L\d+", "ring.py#L1"),
        ("migrating.md", r"\| `num_steps` \|", "| `steps` |"),
    ],
)
def test_a_stale_page_is_noticed_and_repaired(name, written, stale, tmp_path, capsys):
    generator = load_generator()
    good, update = (DOCS / name).read_text(encoding="utf-8"), generator.PAGES[DOCS / name]
    page = tmp_path / name
    page.write_text(re.sub(written, stale, good), encoding="utf-8")
    generator.PAGES = {page: update}
    assert generator.main(["--check"]) == 1
    assert "stale" in capsys.readouterr().err
    assert generator.main([]) == 0
    assert page.read_text(encoding="utf-8") == good


def test_every_metric_is_described():
    text = (DOCS / "algorithms" / "ppo.md").read_text(encoding="utf-8")
    core = [field.name for field in fields(Report) if field.metadata.get("written", True)]
    core.remove("metrics")
    assert [name for name in (*core, *LEARNING) if f"`{name}`" not in text] == []


def test_what_a_resume_may_change_is_listed():
    text = (DOCS / "reproducibility.md").read_text(encoding="utf-8")
    listed = re.search(r"On resume these may change, and nothing else: (.*?)\. A", text, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed[1])) == CHANGEABLE


def entries(nav):
    for entry in nav:
        for target in entry.values():
            yield from entries(target) if isinstance(target, list) else [target]


def test_the_navigation_names_every_page_and_only_pages_that_exist():
    nav = list(entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert [target for target in nav if not (DOCS / target).is_file()] == []
    pages = {str(page.relative_to(DOCS)) for page in PAGES if page.is_relative_to(DOCS)}
    assert pages <= set(nav)
    assert len(nav) == len(set(nav))


def anchors(page):
    """As Python-Markdown makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", [*PAGES, *sorted((DOCS / "decisions").glob("*.md"))], ids=named)
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", prose(page)):
        target, _, anchor = link.partition("#")
        if target.startswith("/"):  # a file of the repository, where the page is read there
            assert (ROOT / target[1:]).exists(), f"{named(page)}: {link}"
            continue
        file = Path(os.path.normpath(page.parent / target)) if target else page
        assert file.exists(), f"{named(page)}: {link}"
        if page.is_relative_to(DOCS):  # a site holds nothing from outside
            assert file.is_relative_to(DOCS), f"{named(page)}: {link}"
        assert not anchor or anchor in anchors(file), f"{named(page)}: {link}"
