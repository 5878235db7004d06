"""``python -m earshot`` is the command ``earshot``."""

import sys

from earshot.cli import main

sys.exit(main())
