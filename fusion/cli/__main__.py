"""`python -m fusion.cli`: the `fusion` command without its script."""

import sys

from fusion.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
