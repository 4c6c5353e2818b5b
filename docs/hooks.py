"""Hook of mkdocs: a site has no source files, so links to them become plain names."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    return re.sub(r"\[([^\]]+)\]\(/src/[^)]*\)", r"\1", markdown)
