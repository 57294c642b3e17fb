"""`python -m lease_pool`."""

from __future__ import annotations

import sys

from lease_pool.cli import main

sys.exit(main())
