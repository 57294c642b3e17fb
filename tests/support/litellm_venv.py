"""Makes .cache/litellm-venv: LiteLLM exactly as the role installs it on a host with this Python. Run it as a program, or call `python()`."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".cache" / "litellm-venv"
LOCKS = ROOT / "roles" / "litellm" / "files"


def system_python() -> str:
    """Return the Python that will run LiteLLM: this one's version decides which lock applies."""
    return os.environ.get("LITELLM_PYTHON") or getattr(sys, "_base_executable", sys.executable)


def python() -> Path:
    """Return the environment's Python; builds it when it is missing or the lock has changed (about half a minute)."""
    base = system_python()
    version = subprocess.run(
        [base, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], check=True, capture_output=True, text=True
    ).stdout.strip()
    lock = LOCKS / f"requirements-{version}.txt"
    stamp = VENV / "lock.sha256"
    wanted = f"{version} {hashlib.sha256(lock.read_bytes()).hexdigest()}"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([base, "-m", "venv", str(VENV)], check=True)
        subprocess.run(
            [
                str(VENV / "bin" / "pip"),
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--only-binary",
                ":all:",
                "--requirement",
                str(lock),
            ],
            check=True,
        )
        stamp.write_text(wanted)
    return VENV / "bin" / "python"


if __name__ == "__main__":
    print(python())
