"""A simulated NVML with three cards, and real pynvml over it in processes of its own (the library is loaded once a process)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nvml_sim import library
from tests.support.nvml_sim.cards import Card, Cards
from tests.support.sim_rig import ROOT, UUIDS, Nvml


@pytest.fixture
def cards(tmp_path: Path) -> Cards:
    cards = Cards(tmp_path / "gpu-sim")
    cards.lay_out([Card(uuid, 12288, minor=place) for place, uuid in enumerate(UUIDS)])
    return cards


@pytest.fixture
def environment(cards: Cards) -> dict[str, str]:
    """What a process needs to see these cards."""
    folder = library.build(ROOT / "build" / "nvml_sim").parent
    return {**os.environ, "GPU_SIM_DIR": str(cards.directory), "LD_LIBRARY_PATH": str(folder)}


@pytest.fixture
def nvml(environment: dict[str, str]) -> Nvml:
    """Runs Python lines with pynvml imported as `n` and initialised; a call that hangs raises TimeoutExpired after 2 s."""

    def run(lines: str) -> subprocess.CompletedProcess[str]:
        program = f"import pynvml as n\nn.nvmlInit()\n{lines}"
        return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=2, check=False)

    return run


@pytest.fixture
def occupancy(cards: Cards) -> Iterator[None]:
    """What gpu-sim.service runs on a simulated host."""
    program = ROOT / "tests" / "support" / "nvml_sim" / "occupancy.py"
    with subprocess.Popen([sys.executable, str(program), str(cards.directory)]) as process:
        yield
        process.terminate()
