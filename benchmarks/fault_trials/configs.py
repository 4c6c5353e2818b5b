"""Area `files`: configurations that are odd, damaged or hostile."""

from __future__ import annotations

from .harness import Case, Trial, lost

BAD = (2,)
GOOD = "env_id: CartPole-v1\ntotal_iters: 3\ncompile: 'off'\ntrack: none\noutput_dir: run\n"

CONFIGS: dict[str, tuple[str, bytes, tuple[int, ...]]] = {
    "anchors and merge": ("yaml", b"a: &a 3\ntotal_iters: *a\ntrack: none\n", BAD),
    "merge key": ("yaml", (GOOD + "<<: {seed: 2}\n").encode(), (0, 2)),
    "anchor used": ("yaml", GOOD.replace("3", "&n 3").encode() + b"seed: *n\n", (0,)),
    "anchor of itself": ("yaml", b"env: &e\n  kwargs: *e\n", BAD),
    "duplicate key": ("yaml", (GOOD + "seed: 1\nseed: 2\n").encode(), (0, 2)),
    "billion laughs": (
        "yaml",
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(
            b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9))
            for i in range(9)
        ),
        BAD,
    ),
    "deep nesting": ("yaml", b"a: " + b"[" * 20000, BAD),
    "deep JSON": ("json", b'{"a":' * 20000, BAD),
    "NaN": ("yaml", (GOOD + "lr: .nan\n").encode(), BAD),
    "JSON NaN": ("json", b'{"lr": NaN, "total_iters": 3}', BAD),
    "infinite": ("yaml", (GOOD + "lr: .inf\n").encode(), BAD),
    "huge int": ("yaml", (GOOD + "seed: " + "9" * 5000 + "\n").encode(), BAD),
    "huge JSON int": ("json", b'{"seed": ' + b"9" * 5000 + b"}", BAD),
    "huge TOML int": ("toml", b"seed = " + b"9" * 5000, BAD),
    "tabs": ("yaml", GOOD.replace(": ", ":\t").encode(), (0, 2)),
    "tab indentation": ("yaml", b"env:\n\ttime_limit: 3\n", BAD),
    "BOM": ("yaml", b"\xef\xbb\xbf" + GOOD.encode(), (0,)),
    "JSON BOM": ("json", b'\xef\xbb\xbf{"total_iters": 3}', (0, 2)),
    "TOML BOM": ("toml", b"\xef\xbb\xbfseed = 3", (0, 2)),
    "UTF-16": ("yaml", GOOD.encode("utf-16"), (0, 2)),
    "UTF-16 JSON": ("json", '{"total_iters": 3}'.encode("utf-16"), (0, 2)),
    "Latin-1": ("yaml", "output_dir: größe\n".encode("latin-1"), BAD),
    "binary": ("yaml", bytes(range(256)) * 4, BAD),
    "NUL": ("yaml", GOOD.encode() + b"\0", BAD),
    "empty": ("yaml", b"", (0, 2)),
    "only a comment": ("yaml", b"# nothing\n", (0, 2)),
    "a list": ("yaml", b"- 1\n- 2\n", BAD),
    "a word": ("yaml", b"hello", BAD),
    "two documents": ("yaml", GOOD.encode() + b"---\n" + GOOD.encode(), BAD),
    "Norway": ("yaml", GOOD.replace("'off'", "off").encode(), (0,)),
    "octal": ("yaml", (GOOD + "seed: 017\n").encode(), (0, 2)),
    "sexagesimal": ("yaml", (GOOD + "seed: 1:30\n").encode(), (0, 2)),
    "date": ("yaml", (GOOD + "seed: 2020-01-01\n").encode(), BAD),
    "python tag": ("yaml", b"seed: !!python/object/apply:os.system ['touch pwned']\n", BAD),
    "set tag": ("yaml", (GOOD + "hidden: !!set {64}\n").encode(), (0, 2)),
    "binary tag": ("yaml", (GOOD + "env_id: !!binary aGk=\n").encode(), BAD),
    "numeric keys": ("yaml", b"1: 2\n", BAD),
    "null key": ("yaml", b"~: 2\n", BAD),
    "list key": ("yaml", b"[1, 2]: 2\n", BAD),
    "dict for a number": ("yaml", (GOOD + "seed: {a: 1}\n").encode(), BAD),
    "text for a section": ("yaml", (GOOD + "env: fast\n").encode(), BAD),
    "CRLF": ("yaml", GOOD.replace("\n", "\r\n").encode(), (0,)),
    "JSON with comments": ("json", b'{"seed": 1} // x', BAD),
    "JSON duplicate": (
        "json",
        b'{"total_iters": 3, "seed": 1, "seed": 2, "track": "none"}',
        (0, 2),
    ),
    "TOML duplicate": ("toml", b"seed = 1\nseed = 2\n", BAD),
    "TOML date": ("toml", b"seed = 1979-05-27\n", BAD),
    "TOML array of tables": ("toml", b"[[env]]\ntime_limit = 3\n", BAD),
    "upper-case suffix": ("YAML", GOOD.encode(), (0, 2)),
    "py that raises": ("py", b"raise RuntimeError('FAULT')\n", BAD),
    "py that exits": ("py", b"import sys\nsys.exit(0)\n", BAD),
    "py without config": ("py", b"x = 1\n", BAD),
    "py with a wrong config": ("py", b"config = 3\n", BAD),
    "py with a syntax error": ("py", b"def (\n", BAD),
    "py that interrupts": ("py", b"raise KeyboardInterrupt\n", (2, 75)),
    "py with NUL": ("py", b"x = 1\0\n", BAD),
}


def _configured(case: Case, suffix: str, data: bytes) -> None:
    (case.here / f"c.{suffix}").write_bytes(data)


def _no_harm(case: Case) -> None:
    if (case.here / "pwned").exists():
        raise lost("the configuration was executed")


def trials() -> list[Trial]:
    return [
        Trial(
            "files",
            f"config: {name}",
            f"train --config c.{suffix} --compile off --output-dir run"
            + (" --total-iters 3" if codes != BAD else ""),
            codes,
            prepare=lambda case, s=suffix, d=data: _configured(case, s, d),
            after=_no_harm,
            timeout=40.0,
            quotes=suffix == "py",
        )
        for name, (suffix, data, codes) in CONFIGS.items()
    ]
