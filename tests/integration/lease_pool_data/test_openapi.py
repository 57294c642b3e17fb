"""The published descriptions are true: schemathesis asks the running pool everything they say, and holds every answer against them."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.pool_rig import ROOT, TOKEN, PoolRig

DOCS = ROOT / "docs" / "openapi"


async def run_schemathesis(description: Path, url: str, *options: str) -> str:
    # What the pool answers to methods it does not know is 404, not 405 (DESIGN.md 4.3), so that check is left out.
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance"
    argv = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        str(description),
        "--url",
        url,
        "--checks",
        checks,
        "--max-examples",
        "12",
        "--phases",
        "examples,fuzzing",
    ]
    argv += ["--request-timeout", "20", "--no-color", "--generation-database", "none", *options]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=110, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


async def test_the_data_plane_answers_as_described() -> None:
    async with PoolRig(bounds={"queue_s": 1}) as rig:
        report = await run_schemathesis(DOCS / "data-plane.yaml", f"http://127.0.0.1:{rig.port}", "-H", f"Authorization: Bearer {TOKEN}")
        assert "passed" in report
        await rig.until_all("mining")


@contextlib.asynccontextmanager
async def as_tcp(path: Path):  # type: ignore[no-untyped-def]
    """The unix socket on a port, for a client that knows only those."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(str(path))
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_the_admin_socket_answers_as_described() -> None:
    async with PoolRig() as rig, as_tcp(rig.folder / "run" / "pool.sock") as port:
        # A loan lasts as long as its connection and a followed journal never ends: both have tests of their own.
        report = await run_schemathesis(
            DOCS / "admin.yaml", f"http://127.0.0.1:{port}", "--exclude-path", "/borrow", "--exclude-path", "/events"
        )
        assert "passed" in report
        assert (await rig.status())["cards"]


@pytest.mark.parametrize("name", ["data-plane.yaml", "admin.yaml"])
def test_a_description_names_every_path_of_the_contract(name: str) -> None:
    contract = {
        "data-plane.yaml": {
            "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank", "/v1/images/generations",
            "/v1/models", "/health", "/ready", "/metrics", "/capacity",
        },
        "admin.yaml": {"/status", "/leases", "/events", "/drain", "/resume", "/reconcile", "/release/{uuid}", "/quarantine/{uuid}", "/borrow", "/intent"},
    }  # fmt: skip
    assert set(yaml.safe_load((DOCS / name).read_text())["paths"]) == contract[name]
