"""python -m prism."""

import sys

from prism.cli import main

sys.exit(main())
