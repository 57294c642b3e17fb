"""Builds the simulated libnvidia-ml.so.1 (once, until its source changes)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml_sim.c")
NAME = "libnvidia-ml.so.1"


def build(folder: Path) -> Path:
    """Compiles the library into `folder` unless it is there and newer than its source; returns its path.

    Raises FileNotFoundError where there is no gcc, CalledProcessError where the source does not compile.
    """
    library = folder / NAME
    if library.exists() and library.stat().st_mtime >= SOURCE.stat().st_mtime:
        return library
    folder.mkdir(parents=True, exist_ok=True)
    # into a name of its own first: two test runs may build at once
    fresh = folder / f".{NAME}.{os.getpid()}"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{NAME}"]
    subprocess.run(["gcc", *flags, "-o", str(fresh), str(SOURCE)], check=True)
    return fresh.replace(library)


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/nvml_sim")))
