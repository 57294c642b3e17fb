from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tests.support.http_double import Answer, Sent
from tests.support.run_module import ModuleFailed, run_module

DATA = os.urandom(3 * 1024 * 1024 + 17)
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models" / "m.gguf"


def part(target: Path) -> Path:
    return target.with_name(f".{target.name}.{SHA256[:12]}.part")


def model_file(capsys, target: Path, url: str, **params):
    return run_module(
        capsys,
        "model_file",
        url=url,
        path=str(target),
        sha256=params.pop("sha256", SHA256),
        reserve_mib=params.pop("reserve_mib", 0),
        **params,
    )


def ranges(sent: Sent) -> Answer:
    """A server that resumes."""
    wanted = sent.headers.get("range")
    if wanted is None:
        return Answer(body=DATA)
    start = int(wanted.removeprefix("bytes=").removesuffix("-"))
    if start >= len(DATA):
        return Answer(status=416)
    return Answer(206, DATA[start:], {"Content-Range": f"bytes {start}-{len(DATA) - 1}/{len(DATA)}"})


def no_ranges(_sent: Sent) -> Answer:
    return Answer(body=DATA)


def test_change_check_idempotent_and_idempotent_check(http, capsys, target) -> None:
    server = http(ranges)
    predicted = model_file(capsys, target, server.url + "/m.gguf", check=True)
    assert (predicted["changed"], target.exists(), server.sent) == (True, False, [])
    done = model_file(capsys, target, server.url + "/m.gguf")
    assert (done["changed"], done["downloaded"], done["diff"]) == (True, len(DATA), predicted["diff"])
    assert target.read_bytes() == DATA
    assert oct(target.stat().st_mode)[-3:] == "644"
    assert model_file(capsys, target, server.url + "/m.gguf")["changed"] is False
    assert model_file(capsys, target, server.url + "/m.gguf", check=True)["changed"] is False
    assert len(server.sent) == 1
    assert not part(target).exists()


def test_a_file_url_is_copied(capsys, target, tmp_path) -> None:
    (tmp_path / "source").write_bytes(DATA)
    part(target).write_bytes(b"left over")
    assert model_file(capsys, target, f"file://{tmp_path}/source")["downloaded"] == len(DATA)
    assert target.read_bytes() == DATA


@pytest.mark.parametrize(("answer", "resumed"), [(ranges, 1_000_000), (no_ranges, 0)])
def test_an_interrupted_download_goes_on_where_the_server_can(http, capsys, target, answer, resumed) -> None:
    part(target).write_bytes(DATA[:1_000_000])
    result = model_file(capsys, target, http(answer).url)
    assert (result["resumed_at"], result["downloaded"]) == (resumed, len(DATA) - resumed)
    assert target.read_bytes() == DATA


def test_a_part_that_is_complete_already_is_fetched_again(http, capsys, target) -> None:
    part(target).write_bytes(DATA)
    assert model_file(capsys, target, http(ranges).url)["changed"] is True
    assert target.read_bytes() == DATA


def test_a_connection_that_ends_early_fails_and_the_next_run_goes_on(http, capsys, target) -> None:
    server = http(lambda _sent: Answer(body=DATA[:500_000], length=len(DATA)))
    with pytest.raises(ModuleFailed, match=rf"the connection ended after 500000 of {len(DATA)} bytes"):
        model_file(capsys, target, server.url)
    assert not target.exists()
    server.answer = ranges
    assert model_file(capsys, target, server.url)["resumed_at"] == 500_000
    assert target.read_bytes() == DATA


def test_a_wrong_file_never_replaces_a_right_one(http, capsys, target) -> None:
    target.write_bytes(b"the old model")
    server = http(lambda _sent: Answer(body=b"something else"))
    with pytest.raises(ModuleFailed, match=r"SHA-256: found"):
        model_file(capsys, target, server.url)
    assert target.read_bytes() == b"the old model"


def test_a_file_that_was_changed_since_is_read_again_and_replaced(http, capsys, target) -> None:
    server = http(ranges)
    model_file(capsys, target, server.url)
    target.write_bytes(b"x" + DATA[1:])
    assert model_file(capsys, target, server.url)["changed"] is True
    assert target.read_bytes() == DATA


def test_a_verified_file_is_not_read_again_unless_asked(http, capsys, target) -> None:
    server = http(ranges)
    model_file(capsys, target, server.url)
    before = target.stat()
    target.write_bytes(b"y" + DATA[1:])  # same size
    os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert model_file(capsys, target, server.url)["changed"] is False
    assert model_file(capsys, target, server.url, verify="always")["changed"] is True


def test_a_file_put_there_by_hand_is_accepted_without_a_download(http, capsys, target) -> None:
    server = http(ranges)
    target.write_bytes(DATA)
    assert model_file(capsys, target, server.url)["changed"] is False
    assert server.sent == []


def test_too_little_space_is_refused_before_anything_is_written(http, capsys, target) -> None:
    with pytest.raises(ModuleFailed, match=r"free space in .*: found \d+ MiB, expected \d+ MiB"):
        model_file(capsys, target, http(ranges).url, reserve_mib=10**9)
    assert list(target.parent.iterdir()) == []


def test_the_token_goes_into_the_header_and_nowhere_else(http, capsys, target) -> None:
    server = http(lambda _sent: Answer(status=403))
    with pytest.raises(ModuleFailed) as failed:
        model_file(capsys, target, server.url, token="hf-secret-token")
    assert server.sent[0].headers["authorization"] == "Bearer hf-secret-token"
    assert "hf-secret-token" not in str(failed.value.result)
    assert "403" in failed.value.result["msg"]


@pytest.mark.parametrize(
    ("params", "message"), [({"sha256": "abc"}, "expected 64 hexadecimal digits"), ({"url": "ftp://x/y"}, "expected http://")]
)
def test_options_that_cannot_be_right_are_refused(capsys, target, params, message) -> None:
    with pytest.raises(ModuleFailed, match=message):
        model_file(capsys, target, params.pop("url", "https://models.example.com/m"), **params)
