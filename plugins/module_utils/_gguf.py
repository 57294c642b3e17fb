# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Reads the header of a GGUF model file, bounded; the format is ggml's `docs/gguf.md`, versions 2 and 3. Nothing here knows Ansible.

The `gguf` library is not used: it needs numpy on the host and takes ten seconds for one tokenizer of 262,144 words, which are skipped here.
"""

from __future__ import annotations

import os
import struct
import typing as t

Facts = t.Dict[str, t.Any]

MAGIC = b"GGUF"
STRING, ARRAY = 8, 9
# Value type -> struct format of the scalars (ggml: enum gguf_type).
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# A header larger than these is not a header.
MAX_KEYS = 65536
MAX_STRING = 64 * 1024 * 1024
MAX_ELEMENTS = 64 * 1024 * 1024
# Longer arrays are tokenizers: skipped.
KEPT_ELEMENTS = 4096
# general.file_type -> name (llama.cpp: enum llama_ftype).
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L",
    14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
    36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip


class GgufError(Exception):
    """Not a GGUF file, cut short, or beyond the bounds of a header; the message says what was found and what is expected."""


class _Reader:
    def __init__(self, file: t.BinaryIO, size: int) -> None:
        self._file = file
        self._size = size

    def take(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise GgufError(f"the header is cut short at byte {self._size}")
        return data

    def skip(self, count: int) -> None:
        if self._file.tell() + count > self._size:
            raise GgufError(f"the header is cut short at byte {self._size}")
        self._file.seek(count, os.SEEK_CUR)

    def number(self, form: str) -> t.Any:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def length(self, bound: int, what: str) -> int:
        found = t.cast(int, self.number("Q"))
        if found > bound:
            raise GgufError(f"{what}: found {found}, expected at most {bound}")
        return found

    def string(self) -> str:
        return self.take(self.length(MAX_STRING, "length of a string")).decode("utf-8", "replace")

    def value(self, kind: int) -> t.Any:
        if kind == STRING:
            return self.string()
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind != ARRAY:
            raise GgufError(f"type of a value: found {kind}, expected 0 to 12")
        element, count = self.number("I"), self.length(MAX_ELEMENTS, "length of an array")
        if count <= KEPT_ELEMENTS and element != ARRAY:
            return [self.value(element) for _index in range(count)]
        if element in SCALARS:
            self.skip(count * struct.calcsize("<" + SCALARS[element]))
        elif element == STRING:
            for _index in range(count):
                self.skip(self.length(MAX_STRING, "length of a string"))
        else:
            raise GgufError(f"type of an array's elements: found {element}, expected a scalar or a string")
        return None


def read_header(path: str) -> Facts:
    """The key-value pairs of the header, long arrays as None. Raises GgufError, or OSError when the file cannot be read."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        reader = _Reader(file, size)
        magic = file.read(4)
        if magic != MAGIC:
            raise GgufError(f"the first four bytes: found {magic!r}, expected {MAGIC!r}")
        version = reader.number("I")
        if version not in (2, 3):
            raise GgufError(f"version of the format: found {version}, expected 2 or 3 (little endian)")
        tensors = reader.number("Q")
        keys = reader.length(MAX_KEYS, "number of keys")
        header: Facts = {"version": version, "tensors": tensors, "bytes": size}
        for _index in range(keys):
            key = reader.string()
            header[key] = reader.value(reader.number("I"))
    return header


def facts(header: Facts) -> Facts:
    """Architecture, layers, context, heads and the KV cache's bytes a token at f16 (an upper bound where layers use a sliding window)."""
    arch = header.get("general.architecture")
    if not isinstance(arch, str):
        raise GgufError("general.architecture is missing")

    def of(name: str, default: t.Any = None) -> t.Any:
        return header.get(f"{arch}.{name}", default)

    return {
        "architecture": arch,
        "name": header.get("general.name"),
        "size_label": header.get("general.size_label"),
        "file_type": FILE_TYPES.get(header.get("general.file_type", -1)),
        "layers": of("block_count"),
        "trained_context": of("context_length"),
        "embedding_length": of("embedding_length"),
        "sliding_window": of("attention.sliding_window"),
        "projector": arch == "clip",
        "kv_bytes_per_token": kv_bytes_per_token(header, arch),
        "bytes": header["bytes"],
    }


def kv_bytes_per_token(header: Facts, arch: str) -> t.Optional[int]:
    """Bytes that one token of context takes in the KV cache at f16; None for files without attention (projectors).

    Each layer keeps a key and a value for each of its KV heads; models with latent attention keep one latent and its rotary part instead.
    Layers without attention have no KV heads. A sliding window is not counted off: servers may keep the whole cache (`--swa-full`).
    """

    def of(name: str, default: t.Any = None) -> t.Any:
        return header.get(f"{arch}.{name}", default)

    layers, heads, width = of("block_count"), of("attention.head_count"), of("embedding_length")
    if not layers or not heads or not width or arch == "clip":
        return None
    rank = of("attention.kv_lora_rank")
    if rank:
        return t.cast(int, layers * (rank + of("rope.dimension_count", 0)) * 2)
    kv_heads = of("attention.head_count_kv", heads)
    per_layer = list(kv_heads) if isinstance(kv_heads, list) else [kv_heads] * layers
    default = width // max(heads if isinstance(heads, list) else [heads])
    elements = of("attention.key_length", default) + of("attention.value_length", default)
    return t.cast(int, sum(per_layer) * elements * 2)
