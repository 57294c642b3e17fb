from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.gpu_watchdog.rig import FakePool, Receiver, Rig


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(**options: Any) -> Rig:
        rig = Rig(tmp_path, **options)
        rigs.append(rig)
        return rig

    yield make
    for rig in rigs:
        rig.kill()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()


@pytest.fixture
def pool(rig: Rig) -> Iterator[FakePool]:
    server = FakePool(rig.folder / "pool.sock")
    yield server
    server.close()


@pytest.fixture
def receiver(rig: Rig) -> Iterator[Receiver]:
    server = Receiver()
    (rig.folder / "webhook").write_text(server.url + "/alert\n")
    rig.options["webhook_file"] = str(rig.folder / "webhook")
    yield server
    server.close()
