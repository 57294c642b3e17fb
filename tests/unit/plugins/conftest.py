from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.admin_double import AdminDouble
from tests.support.http_double import Answer, HttpDouble, Sent


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[AdminDouble]:
    double = AdminDouble(tmp_path / "pool.sock")
    yield double
    double.close()


@pytest.fixture
def http(tmp_path: Path) -> Iterator[Callable[..., HttpDouble]]:
    """Start servers; each is closed at the end."""
    started: list[HttpDouble] = []

    def start(answer: Callable[[Sent], Answer], socket: Path | None = None) -> HttpDouble:
        started.append(HttpDouble(answer, socket))
        return started[-1]

    yield start
    for double in started:
        double.close()
