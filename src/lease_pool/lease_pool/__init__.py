"""Leases the GPUs of one host to model servers and gives them back to their idle workload (command `lease-pool`)."""

from __future__ import annotations

__version__ = "0.3.0"
