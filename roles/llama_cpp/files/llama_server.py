"""llama-server's command line for the native server inside the `xllamacpp` wheel.

The wheel carries llama.cpp's own HTTP server but no executable. This file is that executable: it turns the options
below into the wheel's parameters, starts the server and waits. Everything after that is llama.cpp: `/health` answers
503 while the model loads and 200 when it is ready. Signals keep their default action, so SIGTERM ends the process at
once in any phase and no child is left. An option that is not listed here is refused (exit 2), never ignored.
"""

from __future__ import annotations

import argparse
import signal
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import xllamacpp

SWITCH = {"on": True, "off": False}
FLASH_ATTENTION = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}
POOLING = ("none", "mean", "cls", "last", "rank")


def cache_type(name: str) -> Any:
    """The wheel's enum member of a KV cache type such as `f16` or `q8_0`."""
    try:
        return xllamacpp.ggml_type[f"GGML_TYPE_{name.upper()}"]
    except KeyError:
        raise argparse.ArgumentTypeError(f"unknown cache type {name}") from None


def pooling_type(name: str) -> Any:
    if name not in POOLING:
        raise argparse.ArgumentTypeError(f"{name} is not one of {', '.join(POOLING)}")
    return xllamacpp.llama_pooling_type[f"LLAMA_POOLING_TYPE_{name.upper()}"]


def flash_attention(name: str) -> Any:
    if name not in FLASH_ATTENTION:
        raise argparse.ArgumentTypeError(f"{name} is not one of {', '.join(FLASH_ATTENTION)}")
    return xllamacpp.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{FLASH_ATTENTION[name]}"]


def gpu_layers(text: str) -> int:
    """`auto`, `all` or a number, as llama-server takes it."""
    return {"auto": -1, "all": -2}.get(text) or int(text)


def api_keys(path: str) -> list[str]:
    """One key a line. An empty file would leave the server open, so it is refused."""
    try:
        keys = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {path}: {error.strerror}") from None
    if not keys:
        raise argparse.ArgumentTypeError(f"{path} has no key")
    return keys


def text_file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {path}: {error.strerror}") from None


# Options whose value goes into one attribute of the wheel's parameters: flags, attribute, conversion.
VALUES: tuple[tuple[tuple[str, ...], str, Callable[[str], Any]], ...] = (
    (("-m", "--model"), "model.path", str),
    (("-mm", "--mmproj"), "mmproj.path", str),
    (("--port",), "port", int),
    (("--api-key-file",), "api_keys", api_keys),
    (("-c", "--ctx-size"), "n_ctx", int),
    (("-np", "--parallel"), "n_parallel", int),
    (("-n", "--predict", "--n-predict"), "n_predict", int),
    (("-b", "--batch-size"), "n_batch", int),
    (("-ub", "--ubatch-size"), "n_ubatch", int),
    (("-ctk", "--cache-type-k"), "cache_type_k", cache_type),
    (("-ctv", "--cache-type-v"), "cache_type_v", cache_type),
    (("-fa", "--flash-attn"), "flash_attn_type", flash_attention),
    (("-ngl", "--gpu-layers", "--n-gpu-layers"), "n_gpu_layers", gpu_layers),
    (("-mg", "--main-gpu"), "main_gpu", int),
    (("-t", "--threads"), "cpuparams.n_threads", int),
    (("-tb", "--threads-batch"), "cpuparams_batch.n_threads", int),
    (("--threads-http",), "n_threads_http", int),
    (("--pooling",), "pooling_type", pooling_type),
    (("-cram", "--cache-ram"), "cache_ram_mib", int),
    (("--chat-template",), "chat_template", str),
    (("--chat-template-file",), "chat_template", text_file),
    (("--temp", "--temperature"), "sampling.temp", float),
    (("--top-k",), "sampling.top_k", int),
    (("--top-p",), "sampling.top_p", float),
    (("--min-p",), "sampling.min_p", float),
    (("-s", "--seed"), "sampling.seed", int),
    (("-lv", "--verbosity"), "verbosity", int),
)

# Options without a value: flags, attribute, what they set it to.
SWITCHES: tuple[tuple[tuple[str, ...], str, bool], ...] = (
    (("--embedding", "--embeddings"), "embedding", True),
    (("--metrics",), "endpoint_metrics", True),
    (("--props",), "endpoint_props", True),
    (("--slots",), "endpoint_slots", True),
    (("--no-slots",), "endpoint_slots", False),
    (("--jinja",), "use_jinja", True),
    (("--no-jinja",), "use_jinja", False),
    (("--no-mmproj",), "no_mmproj", True),
    (("--no-mmproj-offload",), "mmproj_use_gpu", False),
    (("--warmup",), "warmup", True),
    (("--no-warmup",), "warmup", False),
    (("--webui", "--ui"), "ui", True),
    (("--no-webui", "--no-ui"), "ui", False),
    (("--cache-prompt",), "cache_prompt", True),
    (("--no-cache-prompt",), "cache_prompt", False),
    (("--context-shift",), "ctx_shift", True),
    (("--swa-full",), "swa_full", True),
    (("-kvu", "--kv-unified"), "kv_unified", True),
)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="llama-server", description=__doc__, allow_abbrev=False)
    result.add_argument("--version", action="version", version=f"xllamacpp {xllamacpp.__version__}")
    result.add_argument("--host", default="127.0.0.1", help="an address, or the path of a unix socket ending in .sock")
    result.add_argument("-a", "--alias", help="model name(s) shown to clients, separated by commas")
    result.add_argument("-fit", "--fit", choices=SWITCH, default="on", help="fit unset parameters to the free memory")
    result.add_argument("--rerank", "--reranking", action="store_true", help="serve /v1/rerank")
    for flags, attribute, convert in VALUES:
        result.add_argument(*flags, dest=attribute, type=convert, required=attribute == "model.path", metavar=flags[-1].strip("-").upper())
    for flags, attribute, value in SWITCHES:
        result.add_argument(*flags, dest=attribute, action="store_const", const=value, default=None)
    return result


def parameters(argv: Sequence[str]) -> Any:
    """The wheel's parameters for a llama-server command line; exits 2 with one line when it is not understood."""
    options = parser().parse_args(argv)
    result = xllamacpp.CommonParams()
    result.hostnames = [options.host]
    result.port = 8080
    result.fit_params = SWITCH[options.fit]
    if options.alias:
        result.model_alias = {name.strip() for name in options.alias.split(",")}
    if options.rerank:
        result.embedding = True
        result.pooling_type = pooling_type("rank")
    for _flags, attribute, _what in (*VALUES, *SWITCHES):
        value = getattr(options, attribute)
        if value is None:
            continue
        target = result
        *parents, name = attribute.split(".")
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, name, value)
    return result


def remove_stale_socket(path: Path) -> None:
    """A socket left by a killed server would refuse the bind; anything else at that path is not ours to remove."""
    if path.suffix == ".sock" and path.exists() and stat.S_ISSOCK(path.stat().st_mode):
        path.unlink()


def main() -> None:
    params = parameters(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    remove_stale_socket(Path(params.hostnames[0]))
    try:
        server = xllamacpp.Server(params)  # returns when the model is loaded
    except RuntimeError as error:  # the native log above says why
        sys.exit(f"llama-server: {error}")
    print(f"llama-server: ready on {server.listening_address}", file=sys.stderr, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
