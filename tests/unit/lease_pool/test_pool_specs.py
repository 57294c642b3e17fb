"""What a worker is started with."""

from __future__ import annotations

from typing import Any

import yaml
from lease_pool.config import parse
from lease_pool.specs import launch_spec


def spec_of(model: dict[str, Any], **keys: Any) -> Any:
    data = {"cards": [{"slot": "c0", "uuid": "GPU-0", "memory_mib": 100}], "models": {"m": {"memory_mib": 10} | model}} | keys
    config = parse(yaml.safe_dump(data), "x")
    return launch_spec(config, config.models["m"], config.cards[0])


def test_llama_cpp_gets_its_model_its_context_per_slot_and_a_socket() -> None:
    spec = spec_of(
        {
            "backend": "llama_cpp",
            "file": "/m.gguf",
            "mmproj": "/p",
            "context": 4096,
            "parallel": 2,
            "cache_type": "q8_0",
            "argv": ["-t", "4"],
        }
    )
    argv = " ".join(spec.argv)
    assert spec.argv[0] == "/opt/gpu-fleet/llama.cpp/current/bin/llama-server"
    for part in ("--host {socket}", "--api-key-file {api_key_file}", "--model /m.gguf", "--mmproj /p", "--ctx-size 8192", "--parallel 2"):
        assert part in argv
    assert "--cache-type-k q8_0 --cache-type-v q8_0 --flash-attn on" in argv
    assert argv.endswith("-t 4")
    assert (spec.needs_port, spec.ready_path, spec.memory_mib) == (False, "/health", 10)


def test_embeddings_and_rerank_servers_are_told_so() -> None:
    assert "--embeddings" in spec_of({"backend": "llama_cpp", "file": "/m", "endpoints": ["embeddings"]}).argv
    assert "--reranking" in spec_of({"backend": "llama_cpp", "file": "/m", "endpoints": ["rerank"]}).argv


def test_a_command_is_taken_whole_with_its_placeholders_anywhere() -> None:
    spec = spec_of(
        {"backend": "command", "argv": ["/x", "a={uuid},{slot}", '{"json": {}}', "{host}:{port}"], "ready": "/ok", "env": {"F": "{slot}"}}
    )
    assert spec.argv == ("/x", "a=GPU-0,c0", '{"json": {}}', "{host}:{port}")
    assert (spec.needs_port, spec.ready_path, spec.env) == (True, "/ok", {"F": "c0"})
    assert spec_of({"backend": "command", "argv": ["/x", "{socket}"]}).needs_port is False


def test_the_other_backends_are_one_entry_each() -> None:
    vllm = spec_of({"backend": "vllm", "file": "/m", "context": 100, "aliases": ["a"]})
    assert vllm.argv[:3] == ("vllm", "serve", "/m")
    assert vllm.needs_port
    assert vllm.argv[vllm.argv.index("--served-model-name") + 1 :][:2] == ("m", "a")
    ollama = spec_of({"backend": "ollama"}, servers={"ollama": ["/opt/ollama", "serve"]})
    assert ollama.argv == ("/opt/ollama", "serve")
    assert ollama.env["OLLAMA_HOST"] == "{host}:{port}"
    assert "OLLAMA_MODELS" not in ollama.env
    sd = spec_of({"backend": "sd_server", "file": "/m"})
    assert sd.ready_path == "/v1/models"
    assert "--listen-port" in sd.argv
    assert spec_of({"backend": "strata", "file": "/s.yaml"}).needs_port
