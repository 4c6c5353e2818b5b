"""`python -m paceline`: like `paceline`, it imports nothing from the current directory."""

import os
import sys

if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109
    del sys.path[0]

from .cli import main

if __name__ == "__main__":
    main()
