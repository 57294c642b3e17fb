"""`python -m gpu_watchdog`."""

from __future__ import annotations

import sys

from gpu_watchdog.cli import main

sys.exit(main())
