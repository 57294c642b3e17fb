"""The table of backends: how each kind of model server is started and asked whether it is ready. A new server is one entry.

Option names: llama.cpp `tools/server/README.md`; vLLM `vllm serve --help`; stable-diffusion.cpp `examples/server`; Ollama's `envconfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lease_pool.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Backend:
    """One kind of model server. `arguments` and `env` may hold the placeholders of DESIGN.md 4.2; `forbidden` are the options the pool sets."""

    server: tuple[str, ...]
    arguments: Callable[[ModelConfig], list[str]]
    ready_path: str = "/health"
    needs_port: bool = True
    forbidden: frozenset[str] = frozenset()
    env: Mapping[str, str] = field(default_factory=dict)


def _llama_cpp(model: ModelConfig) -> list[str]:
    # A path that ends in .sock makes llama-server listen on a unix socket. One GPU is visible, so its index inside is 0.
    arguments = ["--host", "{socket}", "--api-key-file", "{api_key_file}", "--model", "{file}", "--alias", model.name]
    arguments += ["--parallel", str(model.parallel), "--n-gpu-layers", "999", "--no-webui"]
    arguments += ["--cache-type-k", model.cache_type, "--cache-type-v", model.cache_type]
    if model.cache_type not in ("f32", "f16", "bf16"):
        arguments += ["--flash-attn", "on"]  # llama.cpp refuses a quantized V cache without it
    if model.context is not None:
        # --ctx-size is shared by all slots; the catalog promises the context to each request.
        arguments += ["--ctx-size", str(model.context * model.parallel)]
    if model.mmproj is not None:
        arguments += ["--mmproj", str(model.mmproj)]
    if "embeddings" in model.endpoints:
        arguments += ["--embeddings"]
    if "rerank" in model.endpoints:
        arguments += ["--reranking"]
    return arguments


def _vllm(model: ModelConfig) -> list[str]:
    arguments = [
        "{file}",
        "--host",
        "{host}",
        "--port",
        "{port}",
        "--served-model-name",
        *model.names,
        "--max-num-seqs",
        str(model.parallel),
    ]
    return arguments + (["--max-model-len", str(model.context)] if model.context is not None else [])


def _nothing(model: ModelConfig) -> list[str]:
    return []


def _sd_server(model: ModelConfig) -> list[str]:
    return ["-l", "{host}", "--listen-port", "{port}", "-m", "{file}"]


def _strata(model: ModelConfig) -> list[str]:
    return ["--config", "{file}", "--host", "{host}", "--port", "{port}"]


_LLAMA_OWN = (
    "--host --port --reuse-port -m --model -mu --model-url -dr --docker-repo -hf -hfr --hf-repo -hff --hf-file -hfd -hfrd --hf-repo-draft "
    "-mm --mmproj -mmu --mmproj-url --mmproj-auto --api-key --api-key-file -a --alias --models-dir --models-preset"
)

BACKENDS: dict[str, Backend] = {
    "llama_cpp": Backend(
        server=("/opt/gpu-fleet/llama.cpp/current/bin/llama-server",),
        arguments=_llama_cpp,
        needs_port=False,
        forbidden=frozenset(_LLAMA_OWN.split()),
    ),
    "command": Backend(server=(), arguments=_nothing, needs_port=False),
    "vllm": Backend(
        server=("vllm", "serve"),
        arguments=_vllm,
        forbidden=frozenset({"--host", "--port", "--uds", "--model", "--served-model-name", "--api-key"}),
    ),
    "ollama": Backend(
        server=("ollama", "serve"),
        arguments=_nothing,
        ready_path="/api/version",
        env={
            "OLLAMA_HOST": "{host}:{port}",
            "OLLAMA_KEEP_ALIVE": "-1",  # the pool unloads by ending the process; a model that leaves earlier would only load twice
            "OLLAMA_NO_CLOUD": "1",
            "OLLAMA_NUM_PARALLEL": "{parallel}",
            "OLLAMA_CONTEXT_LENGTH": "{context}",
            "OLLAMA_MODELS": "{file}",
        },
    ),
    "strata": Backend(
        server=("/opt/gpu-fleet/strata/.venv/bin/python", "/opt/gpu-fleet/strata/run.py", "run"),
        arguments=_strata,
        forbidden=frozenset({"--config", "--host", "--port"}),
    ),
    "sd_server": Backend(
        server=("/opt/gpu-fleet/sd.cpp/current/bin/sd-server",),
        arguments=_sd_server,
        ready_path="/v1/models",
        forbidden=frozenset({"-l", "--listen-ip", "--listen-port", "-m", "--model"}),
    ),
}


def forbidden_argument(backend: str, argument: str) -> str | None:
    """The option that the pool itself sets and this argument would set again, in its long, short or `=` form; else None.

    llama.cpp also takes `_` for `-` in long options, and some parsers take `--opt=value`.
    """
    option = argument.split("=", 1)[0]
    if option.startswith("--"):
        option = "--" + option[2:].replace("_", "-")
    return option if option in BACKENDS[backend].forbidden else None
