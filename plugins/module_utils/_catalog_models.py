"""Local models and hosted providers: variables -> Model and HostedModel, or faults."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

from ._catalog_faults import MISSING, Faults, shown
from ._catalog_memory import CACHE_SIZE, DEFAULT_OVERHEAD_MIB, kv_mib
from ._catalog_model import BACKENDS, CLASSES, ENDPOINTS, ENDPOINTS_OF_KIND, KINDS, HostedModel, Model
from ._catalog_read import LABEL, LABEL_WORDS, Reader, named

_PATH = re.compile(r"/[^\s\x00-\x1f\x7f]*")
_PATH_WORDS = "must be an absolute path without spaces"
_ENV = re.compile(r"FLEET_[A-Z0-9_]+")
_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#@]*)?")
_PREFIX = re.compile(r"[a-z0-9_]+")
_HOSTED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
_MODEL_KEYS = (
    "kind", "backend", "file", "mmproj", "context", "parallel", "cache_type", "weights_mib", "kv_bytes_per_token", "overhead_mib",
    "memory_mib", "labels", "endpoints", "dimensions", "argv", "ready", "env", "declared_context",
)  # fmt: skip
# What the pool sets itself; in an operator's argv it would be set twice (the pool refuses it: a test keeps both lists alike).
POOL_OPTIONS = {
    "llama_cpp": [
        "--host",
        "--port",
        "--reuse-port",
        "-m",
        "--model",
        "-mu",
        "--model-url",
        "-dr",
        "--docker-repo",
        "-hf",
        "-hfr",
        "--hf-repo",
        "-hff",
        "--hf-file",
        "-hfd",
        "-hfrd",
        "--hf-repo-draft",
        "-mm",
        "--mmproj",
        "-mmu",
        "--mmproj-url",
        "--mmproj-auto",
        "--api-key",
        "--api-key-file",
        "-a",
        "--alias",
        "--models-dir",
        "--models-preset",
    ],
    "vllm": ["--host", "--port", "--uds", "--model", "--served-model-name", "--api-key"],
    "strata": ["--config", "--host", "--port"],
    "sd_server": ["-l", "--listen-ip", "--listen-port", "-m", "--model"],
}
_PROVIDER_KEYS = ("litellm", "api_base", "key_env", "classes", "models")


def read_backend_labels(faults: Faults, data: Any) -> Dict[str, List[str]]:
    """backend -> labels that its cards need."""
    reader = Reader(faults, "fleet_backend_labels", {} if data is None else data, BACKENDS)
    return {backend: reader.texts(backend, LABEL.fullmatch, LABEL_WORDS) for backend in BACKENDS}


def read_models(faults: Faults, data: Any, backend_labels: Dict[str, List[str]]) -> Dict[str, Model]:
    """The local models that are whole; a faulty one is reported and left out."""
    entries, _whole = named(faults, "fleet_models", data, "local models")
    models: Dict[str, Model] = {}
    for name in sorted(entries):
        model = _read_model(Reader(faults, f"fleet_models.{name}", entries[name], _MODEL_KEYS), backend_labels)
        if model is not None:
            models[name] = model
    return models


def _read_model(reader: Reader, backend_labels: Dict[str, List[str]]) -> Optional[Model]:
    if not reader.data:
        if not reader.bad:
            reader.fault("kind", "must be one of " + ", ".join(KINDS))
        return None
    kind = reader.choice("kind", KINDS)
    backend = reader.choice("backend", BACKENDS, "llama_cpp")
    file = reader.text("file", _PATH, _PATH_WORDS, required=backend == "llama_cpp")
    mmproj = reader.text("mmproj", _PATH, _PATH_WORDS, required=backend == "llama_cpp" and kind == "vision")
    context = reader.number("context", required=True)
    parallel = reader.number("parallel", 1) or 1
    cache_type = reader.choice("cache_type", CACHE_SIZE, "f16")
    argv = reader.arguments("argv")
    if backend == "command" and not argv and not reader.bad:
        reader.fault("argv", "is required for backend command: the server's whole command line")
    for index, argument in enumerate(argv):
        option = argument.split("=", 1)[0]
        if (option.replace("_", "-") if option.startswith("--") else option) in POOL_OPTIONS.get(backend, ()):
            reader.bad = True
            reader.faults.add(f"{reader.path}.argv[{index}]", shown(option), "is set by the pool: leave it out")
    env = reader.entries("env")
    if not all(isinstance(key, str) and isinstance(value, str) for key, value in env.items()):
        reader.fault("env", "must map names to strings (quote numbers)", hide=True)
    model: Model = {
        "kind": kind,
        "backend": backend,
        "file": file,
        "mmproj": mmproj,
        "context": context or 1,
        "parallel": parallel,
        "cache_type": cache_type,
        "memory_mib": _memory(reader, context or 1, parallel, cache_type),
        "labels": sorted({*reader.texts("labels", LABEL.fullmatch, LABEL_WORDS), *backend_labels[backend]}),
        "endpoints": reader.choices("endpoints", ENDPOINTS, ENDPOINTS_OF_KIND[kind]),
        "dimensions": reader.number("dimensions"),
        "argv": argv,
        "env": env,
        "ready": reader.text("ready", _PATH, "must be a path such as /health", required=False),
        "declared_context": reader.number("declared_context"),
    }
    wrong = [endpoint for endpoint in model["endpoints"] if endpoint not in ENDPOINTS_OF_KIND[kind]]
    if reader.data.get("kind") in KINDS and (wrong or reader.data.get("endpoints") == []):
        reader.fault("endpoints", f"kind {kind} answers " + ", ".join(ENDPOINTS_OF_KIND[kind]))
    if model["dimensions"] is not None and kind != "embedding" and reader.data.get("kind") in KINDS:
        reader.fault("dimensions", "belongs to kind embedding")
    return None if reader.bad else model


def _memory(reader: Reader, context: int, parallel: int, cache_type: str) -> int:
    parts = ("weights_mib", "kv_bytes_per_token", "overhead_mib")
    if reader.data.get("memory_mib") is not None:
        for key in parts:
            if reader.data.get(key) is not None:
                reader.fault(key, "memory_mib is given: leave out one or the other")
        return reader.number("memory_mib") or 1
    weights = reader.number("weights_mib", required=True) or 1
    kv_bytes = reader.number("kv_bytes_per_token", required=True) or 1
    overhead = reader.number("overhead_mib", DEFAULT_OVERHEAD_MIB) or DEFAULT_OVERHEAD_MIB
    return weights + kv_mib(kv_bytes, cache_type, context, parallel) + overhead


def read_hosted(faults: Faults, data: Any) -> Dict[str, HostedModel]:
    """`provider/model` -> hosted model, of the providers that are whole."""
    entries, _whole = named(faults, "fleet_hosted_providers", data, "hosted providers")
    hosted: Dict[str, HostedModel] = {}
    for name in sorted(entries):
        reader = Reader(faults, f"fleet_hosted_providers.{name}", entries[name], _PROVIDER_KEYS)
        if reader.data:
            hosted.update(_read_provider(name, reader))
    return hosted


def _read_provider(name: str, reader: Reader) -> Dict[str, HostedModel]:
    prefix = reader.text("litellm", _PREFIX, "must be LiteLLM's provider prefix, such as openai, anthropic, openrouter") or ""
    base = reader.text(
        "api_base",
        _URL,
        "must be an http(s) URL without user, query or fragment",
        required=prefix == "openai",
        hide="@" in str(reader.data.get("api_base")),
    )
    key_env = reader.text(
        "key_env", _ENV, "must be the name of an environment variable that starts with FLEET_ (never the key itself)", hide=True
    )
    classes = reader.choices("classes", CLASSES[:2])
    if "classes" not in reader.data or reader.data["classes"] == []:
        reader.fault("classes", "must list the data classes that may go there: public, internal")
    models = reader.entries("models")
    if not models and not reader.bad:
        reader.fault("models", "must list at least one model {context: tokens}")
    whole: Dict[str, HostedModel] = {}
    for model, settings in sorted(models.items(), key=lambda item: str(item[0])):
        where = f"{reader.path}.models.{model}"
        if not isinstance(model, str) or not _HOSTED_NAME.fullmatch(model):
            reader.faults.add(where, shown(model), "must be the provider's id of the model: no spaces, no commas")
            continue
        inner = Reader(reader.faults, where, settings, ("context", "kinds", "dimensions"))
        if not inner.data:
            if not inner.bad:
                inner.faults.add(f"{where}.context", MISSING, "must be a whole number of at least 1")
            continue
        context = inner.number("context", required=True)
        kinds = inner.choices("kinds", KINDS, ["chat"])
        dimensions = inner.number("dimensions")
        if inner.bad or reader.bad or context is None or key_env is None:
            continue
        whole[f"{name}/{model}"] = {
            "provider": name,
            "litellm": f"{prefix}/{model}",
            "api_base": base,
            "key_env": key_env,
            "classes": classes,
            "context": context,
            "kinds": kinds,
            "dimensions": dimensions,
        }
    return whole
