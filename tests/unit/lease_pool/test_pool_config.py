"""The configuration's faults, as an operator reads them."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from lease_pool.backends import BACKENDS, forbidden_argument
from lease_pool.config import ConfigError, load, parse, schema

GOOD: dict[str, Any] = {
    "supervisor": "process",
    "card_source": "declared",
    "cards": [{"slot": "c0", "uuid": "GPU-0", "memory_mib": 12288}, {"slot": "c1", "uuid": "GPU-1", "memory_mib": 8192}],
    "models": {
        "m": {"backend": "llama_cpp", "file": "/m.gguf", "memory_mib": 100, "aliases": ["t3-code", "m"]},
        "n": {"backend": "command", "argv": ["/bin/server"], "memory_mib": 100},
    },
}


def check(change: dict[str, Any]) -> list[str]:
    """The faults of GOOD with `path: value` changes; a value of ... removes the key."""
    data = copy.deepcopy(GOOD)
    for path, value in change.items():
        keys = path.split("/")
        at: Any = data
        for key in keys[:-1]:
            at = at[int(key)] if isinstance(at, list) else at.setdefault(key, {})
        if value is ...:
            del at[keys[-1]]
        else:
            at[keys[-1]] = value
    try:
        parse(yaml.safe_dump(data), "pool.yml")
    except ConfigError as error:
        return error.faults
    return []


def test_the_smallest_and_the_documented_configurations_are_taken() -> None:
    assert check({}) == []
    config = parse(yaml.safe_dump({"cards": [{"slot": "c0", "uuid": "GPU-0"}], "models": {}}), "x")
    assert (config.supervisor, config.card_source, config.idle_workload.driver) == ("systemd", "nvml", "per_card")
    assert str(config.locks_dir) == "/run/gpu-fleet/cards"
    assert config.bounds.model_dump() == {
        "queue": 64, "queue_s": 60, "free_s": 10, "ready_s": 120, "first_byte_s": 300, "stall_s": 60,
        "request_s": 1800, "stop_s": 5, "drain_s": 60, "ping_s": 10, "body_mib": 32,
    }  # fmt: skip


def test_folders_follow_the_runtime_folder() -> None:
    config = parse(yaml.safe_dump(GOOD | {"runtime_dir": "/r"}), "x")
    assert (str(config.locks_dir), str(config.admin_socket)) == ("/r/cards", "/r/pool.sock")


def test_a_model_answers_to_its_name_and_its_aliases() -> None:
    config = parse(yaml.safe_dump(GOOD), "x")
    model = config.resolve("t3-code")
    assert model is not None
    assert model is config.resolve("m")
    assert model.name == "m"
    assert model.names == ["m", "t3-code"]
    assert config.resolve("t3") is None


CASES = [
    ({"listen": 8000}, "pool.yml: listen: 8000: must be a mapping {host: ADDRESS, port: NUMBER}"),
    ({"listen/port": 0}, "pool.yml: listen.port: 0: must be at least 1"),
    ({"listen/port": "9100"}, "pool.yml: listen.port: '9100': must be a whole number"),
    ({"nonsense": 1}, "pool.yml: nonsense: 1: unknown key; known here: listen, admin_socket"),
    ({"cards": []}, "pool.yml: cards: []: must have at least one entry"),
    ({"cards": ...}, "pool.yml: cards: (missing): is required"),
    ({"models": ...}, "pool.yml: models: (missing): is required"),
    ({"cards/1/slot": "c0"}, "pool.yml: cards[1].slot: 'c0': duplicate of cards[0].slot"),
    ({"cards/1/uuid": "gpu-0"}, "pool.yml: cards[1].uuid: 'gpu-0': duplicate of cards[0].uuid"),
    ({"cards/0/slot": "../x"}, "pool.yml: cards[0].slot: '../x': must be 1 to 32 letters"),
    ({"cards/0/memory_mib": ...}, "pool.yml: cards[0].memory_mib: (missing): is required with card_source: declared"),
    ({"models/n/aliases": ["t3-code"]}, "pool.yml: models.n.aliases[0]: 't3-code': duplicate: model m already has this name"),
    ({"models/n/aliases": ["m"]}, "pool.yml: models.n.aliases[0]: 'm': duplicate: model m already has this name"),
    ({"models/n/aliases": ["a", "a"]}, "pool.yml: models.n.aliases[1]: 'a': duplicate: listed twice"),
    ({"models/m/file": ...}, "pool.yml: models.m.file: (missing): is required with backend: llama_cpp"),
    ({"models/n/argv": []}, "pool.yml: models.n.argv: (missing): is required with backend: command"),
    ({"models/n/memory_mib": ...}, "pool.yml: models.n.memory_mib: (missing): is required"),
    ({"models/n/memory_mib": True}, "pool.yml: models.n.memory_mib: True: must be a whole number"),
    ({"models/n/backend": "llama"}, "pool.yml: models.n.backend: 'llama': must be 'llama_cpp', 'command'"),
    ({"models/n/endpoints": ["chats"]}, "pool.yml: models.n.endpoints[0]: 'chats': must be 'chat', 'completions'"),
    ({"models/n/mmproj": "/p"}, "pool.yml: models.n.mmproj: '/p': belongs to backend: llama_cpp"),
    ({"models/n/env": {"A": 1}}, "pool.yml: models.n.env.A: (not shown): must be a string (quote it)"),
    ({"models/n/env": {"CUDA_VISIBLE_DEVICES": "0"}}, "pool.yml: models.n.env.CUDA_VISIBLE_DEVICES: '0': is set by the pool"),
    ({"models/n/argv": ["x", "--port", "9100"]}, "pool.yml: models.n.argv[2]: '9100': port clash: 9100 is the pool's own (listen.port)"),
    ({"models/n/argv": ["x", "--listen=127.0.0.1:9100"]}, "pool.yml: models.n.argv[1]: '--listen=127.0.0.1:9100': port clash"),
    ({"models/n/parallel": 0}, "pool.yml: models.n.parallel: 0: must be greater than 0"),
    ({"models/m/file": "relative.gguf"}, "pool.yml: models.m.file: 'relative.gguf': must be an absolute path"),
    ({"bounds/free_s": 0}, "pool.yml: bounds.free_s: 0: must be greater than 0"),
    ({"bounds/free_s": -1}, "pool.yml: bounds.free_s: -1: must be greater than 0"),
    ({"bounds/free_s": float("inf")}, "pool.yml: bounds.free_s: inf: must be a finite number"),
    ({"bounds/queue": 1.5}, "pool.yml: bounds.queue: 1.5: must be a whole number"),
    ({"bounds/wait_s": 1}, "pool.yml: bounds.wait_s: 1: unknown key; known here: queue, queue_s"),
    ({"window_s": -1}, "pool.yml: window_s: -1: must be at least 0"),
    ({"idle_workload": {"driver": "per_card"}}, "pool.yml: idle_workload.driver: 'per_card': needs supervisor: systemd"),
    ({"idle_workload": {"driver": "command", "start": ["a"], "stop": ["a"]}}, "pool.yml: idle_workload.alive: (missing): is required"),
    ({"admin_socket": "/" + "x" * 120}, "must be a shorter path: a unix socket's path has at most 107 bytes"),
]


@pytest.mark.parametrize(("change", "expected"), CASES, ids=[str(c[0])[:60] for c in CASES])
def test_a_fault_names_the_file_the_key_the_value_and_what_is_allowed(change: dict[str, Any], expected: str) -> None:
    faults = check(change)
    assert any(expected in fault for fault in faults), faults


def test_all_faults_are_told_at_once_one_a_line() -> None:
    faults = check({"nonsense": 1, "bounds/free_s": 0, "cards/1/slot": "c0", "models/n/argv": [], "listen/port": 99999})
    assert len(faults) == 5
    assert all(fault.startswith("pool.yml: ") and "\n" not in fault for fault in faults)


def test_mig_instances_are_refused_under_systemd_and_taken_under_process() -> None:
    mig = {"cards/0/uuid": "MIG-1", "cards/1/uuid": "MIG-2"}
    assert check(mig) == []
    faults = check(mig | {"supervisor": "systemd"})
    assert [f for f in faults if "cards[0].uuid: 'MIG-1': MIG instances need supervisor: process" in f]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cards: [", "not valid YAML"),
        ("models: {a: {}, a: {}}", "key 'a' is given twice"),
        ("just text", "(whole file): 'just text': must be a mapping"),
        ("", "(whole file): None: must be a mapping"),
    ],
)
def test_a_file_that_is_no_configuration_says_why(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, "pool.yml")
    assert expected in error.value.faults[0]
    assert error.value.faults[0].startswith("pool.yml: ")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path / "no.yml")
    assert error.value.faults == [f"{tmp_path}/no.yml: cannot be read: No such file or directory"]


@pytest.mark.parametrize("option", sorted(BACKENDS["llama_cpp"].forbidden))
def test_llama_cpp_s_own_options_are_refused_in_every_form(option: str) -> None:
    forms = [option, f"{option}=x"] + ([option.replace("-", "_").replace("__", "--", 1)] if option.startswith("--") else [])
    for form in forms:
        assert forbidden_argument("llama_cpp", form) == option
        assert check({"models/m/argv": [form]})


def test_other_options_and_a_command_s_own_arguments_are_taken() -> None:
    assert check({"models/m/argv": ["--threads", "4", "-fa", "on", "--mlock"]}) == []
    assert check({"models/n/argv": ["/x", "--host", "0.0.0.0", "-m", "y", "--model=z"]}) == []


def test_the_schema_is_json_and_forbids_unknown_keys() -> None:
    exported = json.loads(json.dumps(schema()))
    assert exported["additionalProperties"] is False
    assert {"cards", "models"} <= set(exported["required"])


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda s: st.lists(s, max_size=3) | st.dictionaries(st.sampled_from(["cards", "models", "m", "slot", "uuid", "backend", "aliases", "argv", "listen", "port", "bounds", "idle_workload", "driver"]), s, max_size=4), max_leaves=12))  # fmt: skip
def test_no_document_makes_it_fall_over(document: Any) -> None:
    with contextlib.suppress(ConfigError):
        parse(yaml.safe_dump(document), "x")


MORE_CASES = [
    ({"models/m/endpoints": []}, "pool.yml: models.m.endpoints: []: must have at least one entry"),
    ({"models/m/dimensions": 8}, "pool.yml: models.m.dimensions: 8: belongs to endpoints: [embeddings]"),
    (
        {"models/m/endpoints": ["chat", "embeddings"]},
        "models.m.endpoints: ['chat', 'embeddings']: a llama.cpp server that answers embeddings",
    ),
    ({"models/m/endpoints": ["rerank", "chat"]}, "models.m.endpoints: ['rerank', 'chat']: a llama.cpp server that answers rerank answers"),
    ({"cards/0/slot": "pool", "runtime_dir": "/r"}, "pool.yml: cards[0].slot: 'pool': its worker's socket would be admin_socket"),
    ({"admin_socket": "/run/gpu-fleet/c1.sock"}, "pool.yml: cards[1].slot: 'c1': its worker's socket would be admin_socket"),
    ({"idle_workload": {"driver": "none", "start": ["a"]}}, "pool.yml: idle_workload.start: ['a']: belongs to driver: command"),
    (
        {"idle_workload": {"driver": "command", "start": ["a"], "stop": ["a"], "alive": ["a"], "unit": "x.service"}},
        "pool.yml: idle_workload.unit: 'x.service': belongs to driver: per_card or shared",
    ),
    (
        {"supervisor": "systemd", "idle_workload": {"driver": "command", "start": ["a"], "stop": ["a"], "alive": ["a"]}},
        "pool.yml: idle_workload.driver: 'command': needs supervisor: process; with supervisor: systemd use per_card, shared or none",
    ),
    (
        {"supervisor": "systemd", "idle_workload": {"driver": "per_card", "unit": "gpu-miner.service"}},
        "pool.yml: idle_workload.unit: 'gpu-miner.service': must contain {slot} with driver: per_card",
    ),
    ({"idle_workload": {"driver": "sometimes"}}, "pool.yml: idle_workload.driver: 'sometimes': must be 'per_card', 'shared'"),
    ({"models/n/env": {"A=B": "x"}}, "pool.yml: models.n.env.A=B: 'x': is not a variable's name"),
    ({"models/n/argv": ["x", "-p", "9100", "--bind=:9100"]}, "pool.yml: models.n.argv[3]: '--bind=:9100': port clash"),
    ({"servers": {"vllm": []}}, "pool.yml: servers.vllm: []: must have at least one entry"),
    *(
        ({key: "x"}, f"pool.yml: {key}: 'x': must be an absolute path")
        for key in ("state_dir", "runtime_dir", "locks_dir", "admin_socket", "token_file")
    ),
    *(
        ({f"bounds/{name}": value}, f"pool.yml: bounds.{name}: {value}: must be greater than 0")
        for name in ("queue", "queue_s", "ready_s", "first_byte_s", "stall_s", "request_s", "stop_s", "drain_s", "ping_s", "body_mib")
        for value in (0, -1)
    ),
]


@pytest.mark.parametrize(("change", "expected"), MORE_CASES, ids=[str(c[0])[:60] for c in MORE_CASES])
def test_each_other_contradiction_is_told_too(change: dict[str, Any], expected: str) -> None:
    faults = check(change)
    assert any(expected in fault for fault in faults), faults
    assert len(faults) == 1, faults


@pytest.mark.parametrize(
    ("backend", "option"), [(name, option) for name, backend in BACKENDS.items() for option in backend.forbidden if name != "llama_cpp"]
)
def test_the_other_backends_own_options_are_refused_too(backend: str, option: str) -> None:
    for form in (option, f"{option}=x"):
        faults = check({"models/m/backend": backend, "models/m/argv": [form]})
        assert faults == [f"pool.yml: models.m.argv[0]: {form!r}: {option} is set by the pool; leave it out"]


def test_a_server_that_answers_one_thing_only_is_taken() -> None:
    for endpoints in (["embeddings"], ["rerank"], ["chat", "completions", "responses"]):
        assert check({"models/m/endpoints": endpoints}) == []
    assert check({"models/n/endpoints": ["chat", "embeddings"], "models/n/dimensions": 8}) == []
