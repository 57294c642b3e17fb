from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.support.mmproj import write_mmproj
from tests.support.run_module import ModuleFailed, run_module


def write(path: Path, arch: str = "llama", **keys: Any) -> Path:
    """A GGUF file written by the gguf library, with one small tensor."""
    writer = gguf.GGUFWriter(str(path), arch)
    values = {"block_count": 4, "context_length": 8192, "embedding_length": 64, "attention.head_count": 8} | keys
    for key, value in values.items():
        if isinstance(value, list):
            writer.add_array(f"{arch}.{key}", value)
        elif value is not None:
            writer.add_uint32(f"{arch}.{key}", value)
    writer.add_array("tokenizer.ggml.tokens", [f"token {number}" for number in range(5000)])
    writer.add_array("tokenizer.ggml.scores", [0.5] * 5000)
    writer.add_file_type(15)
    writer.add_name("test model")
    writer.add_tensor("x", np.zeros((64,), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def kv(layers: int, kv_heads: int, key: int, value: int) -> int:
    return layers * kv_heads * (key + value) * 2


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, kv(4, 8, 8, 8)),  # no grouped heads: as many KV heads as heads, each embedding_length / head_count wide
        ({"attention.head_count_kv": 2}, kv(4, 2, 8, 8)),
        ({"attention.head_count_kv": 1, "attention.key_length": 256, "attention.value_length": 128}, kv(4, 1, 256, 128)),
        ({"attention.head_count_kv": [2, 0, 2, 0]}, kv(2, 2, 8, 8)),  # hybrid: every second layer has no attention
        ({"attention.kv_lora_rank": 512, "rope.dimension_count": 64}, 4 * (512 + 64) * 2),  # latent attention
    ],
)
def test_the_kv_cache_a_token_follows_from_layers_and_heads(tmp_path, capsys, keys, expected) -> None:
    assert run_module(capsys, "gguf_info", path=str(write(tmp_path / "m.gguf", **keys)))["kv_bytes_per_token"] == expected


def test_facts_and_memory_of_a_model(tmp_path, capsys) -> None:
    path = write(tmp_path / "m.gguf", **{"attention.head_count_kv": 2, "attention.sliding_window": 512})
    result = run_module(capsys, "gguf_info", path=str(path), context=4096, parallel=2, cache_type="q8_0", overhead_mib=100)
    expected = {
        "architecture": "llama",
        "name": "test model",
        "file_type": "Q4_K_M",
        "layers": 4,
        "trained_context": 8192,
        "embedding_length": 64,
    }
    assert expected.items() <= result.items()
    assert (result["sliding_window"], result["projector"], result["context"], result["changed"]) == (512, False, 4096, False)
    assert result["bytes"] == path.stat().st_size
    assert result["weights_mib"] == 1
    # 256 bytes a token at f16, 34/64 of it at q8_0, 8192 tokens: 1.06 MiB, rounded up
    assert result["memory_mib"] == 1 + 2 + 100


def test_the_trained_context_is_the_default(tmp_path, capsys) -> None:
    path = str(write(tmp_path / "m.gguf", **{"attention.head_count_kv": 2}))
    assert run_module(capsys, "gguf_info", check=True, path=path)["context"] == 8192


def test_a_projector_needs_its_weights_only(tmp_path, capsys) -> None:
    write_mmproj(tmp_path / "mmproj.gguf")
    result = run_module(capsys, "gguf_info", path=str(tmp_path / "mmproj.gguf"), overhead_mib=0)
    assert (result["projector"], result["kv_bytes_per_token"], result["memory_mib"]) == (True, None, result["weights_mib"])


def test_the_header_is_read_as_the_gguf_library_reads_it(tmp_path) -> None:
    from ansible_collections.agentic.gpu_fleet.plugins.module_utils._gguf import read_header

    path = write(tmp_path / "m.gguf", **{"attention.head_count_kv": [1, 2, 3, 4]})
    ours = read_header(str(path))
    theirs = {
        key: field.contents() for key, field in gguf.GGUFReader(str(path)).fields.items() if not key.startswith(("GGUF.", "tokenizer."))
    }
    assert {key: value for key, value in ours.items() if key in theirs} == theirs
    assert ours["tokenizer.ggml.tokens"] is None  # skipped, not read


def faulty(tmp_path: Path, change: Any) -> str:
    data = bytearray(write(tmp_path / "m.gguf").read_bytes())
    path = tmp_path / "faulty.gguf"
    path.write_bytes(change(data))
    return str(path)


def patched(data: bytearray, at: int, form: str, value: int) -> bytes:
    struct.pack_into(form, data, at, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", r"the first four bytes: found b'', expected b'GGUF'"),
        (lambda data: b"PK\x03\x04" + data[4:], r"the first four bytes: found b'PK"),
        (lambda data: patched(data, 4, "<I", 1), r"version of the format: found 1, expected 2 or 3"),
        (lambda data: patched(data, 4, ">I", 3), r"version of the format: found 50331648"),
        (lambda data: patched(data, 16, "<Q", 2**40), r"number of keys: found 1099511627776"),
        (lambda data: patched(data, 24, "<Q", 2**40), r"length of a string: found 1099511627776"),
        (lambda data: bytes(data[:100]), r"the header is cut short at byte 100"),
        (lambda data: bytes(data[:20000]), r"the header is cut short at byte 20000"),
        (lambda data: bytes(data).replace(b"general.architecture", b"general.architectura"), r"general.architecture is missing"),
    ],
)
def test_a_file_that_is_no_model_is_refused_saying_what_was_found(tmp_path, capsys, change, message) -> None:
    with pytest.raises(ModuleFailed, match=message):
        run_module(capsys, "gguf_info", path=faulty(tmp_path, change))


def test_a_file_that_is_not_there_is_said(tmp_path, capsys) -> None:
    with pytest.raises(ModuleFailed, match=r"absent.gguf: No such file or directory"):
        run_module(capsys, "gguf_info", path=str(tmp_path / "absent.gguf"))


@pytest.mark.parametrize("params", [{"context": 0}, {"parallel": 0}, {"overhead_mib": -1}])
def test_sizes_that_make_no_sense_are_refused(tmp_path, capsys, params) -> None:
    (name,) = params
    with pytest.raises(ModuleFailed, match=rf"{name}: found .*, expected . or more"):
        run_module(capsys, "gguf_info", path=str(write(tmp_path / "m.gguf")), **params)
