"""Folders that the simulated hosts use on the machine they run on."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
BUILD = REPOSITORY / "build" / "hosts"
CACHE = REPOSITORY / ".cache"
RUN = Path("/run/gpu-fleet-hosts")  # the mount namespace; gone with the last host
SSH_KEY = BUILD / "id_ed25519"
FILES = Path(__file__).with_name("files")  # laid over the image's root folder
