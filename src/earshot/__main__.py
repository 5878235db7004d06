"""``python -m earshot`` is the command ``earshot``."""

import sys

from earshot.cli.process import run

sys.exit(run())
