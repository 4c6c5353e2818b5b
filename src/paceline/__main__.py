"""`python -m paceline`: like `paceline`, it imports nothing of the current directory in place of
an installed module."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current directory, which `-m` puts there

from .cli import main

if __name__ == "__main__":
    main()
