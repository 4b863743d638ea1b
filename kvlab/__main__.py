"""``python -m kvlab``: questions about case files, and about this machine; see :mod:`kvlab.cli`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
