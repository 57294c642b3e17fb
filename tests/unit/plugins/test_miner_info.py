from __future__ import annotations

import json
import socket
import time

import pytest

from tests.support.http_double import Answer, json_answer
from tests.support.run_module import ModuleFailed, run_module


def test_a_working_miner_is_read(http, capsys) -> None:
    summary = {"hashrate": 51.3e6, "accepted_count": 118, "rejected_count": 2, "last_share_age_s": 4.2, "pid": 4711, "uptime": 3600}
    server = http(lambda _sent: json_answer(summary))
    result = run_module(capsys, "miner_info", url=server.url + "/summary?full=1")
    expected = {
        "reachable": True,
        "hashing": True,
        "hashrate": 51.3e6,
        "accepted": 118,
        "rejected": 2,
        "share_age_s": 4.2,
        "pid": 4711,
        "uptime_s": 3600,
    }
    assert expected.items() <= result.items()
    assert server.sent[0].path == "/summary?full=1"


@pytest.mark.parametrize(
    "summary",
    [
        {"hashrate": {"total": [700.5, 690, None]}, "results": {"shares_good": 9}},
        {"algorithms": [{"hashrate": {"1min": 700.5}, "shares": {"accepted": 9}}]},
        {"Algorithms": [{"Total_Performance": 700.5, "Total_Accepted": 9}]},
        {"Session": {"Performance_Summary": 700.5}, "shares": {"accepted": 9}},
    ],
    ids=["xmrig", "srbminer", "lolminer", "other"],
)
def test_other_miners_shapes_are_known(http, capsys, summary) -> None:
    result = run_module(capsys, "miner_info", url=http(lambda _sent: json_answer(summary)).url)
    assert (result["hashing"], result["hashrate"], result["accepted"]) == (True, 700.5, 9)


def test_own_names_are_read_by_their_paths(http, capsys) -> None:
    now = time.time()
    server = http(lambda _sent: json_answer({"gpus": [{"rate": "12.5", "ok_at": now - 30}], "hashrate": 0}))
    result = run_module(capsys, "miner_info", url=server.url, paths={"hashrate": "gpus.0.rate", "last_share": "gpus.0.ok_at"})
    assert result["hashrate"] == 12.5
    assert 30 <= result["share_age_s"] < 35


def test_a_running_miner_without_hashrate_is_reachable_and_not_hashing(http, capsys) -> None:
    result = run_module(capsys, "miner_info", url=http(lambda _sent: json_answer({"hashrate": 0, "accepted": 0})).url)
    assert (result["reachable"], result["hashing"], result["share_age_s"]) == (True, False, None)


@pytest.mark.parametrize("check", [False, True])
def test_no_miner_is_a_result_and_not_a_failure(capsys, check) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        result = run_module(capsys, "miner_info", check=check, url=f"http://127.0.0.1:{free.getsockname()[1]}/summary")
    assert (result["reachable"], result["hashing"], result["hashrate"], result["pid"]) == (False, False, None, None)
    assert "refused" in result["message"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(body=b"<html>"), "the answer is not JSON"),
        (Answer(body=json.dumps([1]).encode()), "the answer is not a JSON object"),
        (Answer(status=404), "expected status 200, got 404"),
    ],
)
def test_an_answer_that_is_no_summary_is_not_reachable(http, capsys, answer, message) -> None:
    result = run_module(capsys, "miner_info", url=http(lambda _sent: answer).url)
    assert result["reachable"] is False
    assert message in result["message"]


def test_a_miner_that_hangs_costs_the_timeout(capsys) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        result = run_module(capsys, "miner_info", url=f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout=0.2)
    assert result["message"].endswith("no answer within 0.2 s")


def test_an_unknown_name_of_a_path_is_refused(capsys) -> None:
    with pytest.raises(ModuleFailed, match=r"paths: found rate, expected only hashrate"):
        run_module(capsys, "miner_info", paths={"rate": "x"})
