"""The service around the core: a card without an owner ends it as failed, so that whoever supervises it starts it anew."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from lease_pool.card import Card
from lease_pool.config import parse
from lease_pool.service import Service

from tests.support.pool_rig import free_port

CONFIG = """
supervisor: process
card_source: declared
listen: {{port: {port}}}
runtime_dir: {folder}/run
state_dir: {folder}/state
token_file: {folder}/token
cards: [{{slot: c0, uuid: GPU-0, memory_mib: 1}}, {{slot: c1, uuid: GPU-1, memory_mib: 1}}]
models: {{}}
"""


async def test_a_card_whose_owner_failed_ends_the_pool_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = Card.run

    async def run(self: Any) -> None:
        if self.slot == "c1":
            raise RuntimeError("a fault of ours")
        await own(self)

    monkeypatch.setattr(Card, "run", run)
    (tmp_path / "token").write_text("t\n")
    path = tmp_path / "pool.yml"
    path.write_text(CONFIG.format(folder=tmp_path, port=free_port()))
    async with asyncio.timeout(20):
        assert await Service(str(path), parse(path.read_text(), str(path))).run() == 1
    assert "a fault of ours" in caplog.text
    assert "card c1 failed" in caplog.text
    assert not (tmp_path / "run" / "pool.sock").exists()
    events = [json.loads(line)["event"] for line in (tmp_path / "state" / "journal.jsonl").read_text().splitlines()]
    assert events[-1] == "stop"
