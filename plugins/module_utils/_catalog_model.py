"""The words of the catalog: tiers, classes, kinds, and the shapes that `expand()` returns (plain data: JSON in, JSON out)."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict

CLASSES = ("public", "internal", "restricted")  # from open to closed
TIERS = ("T0", "T1", "T2", "T3", "T4")
LOCAL_TIERS = ("T3", "T4")
KINDS = ("chat", "vision", "embedding", "rerank", "image")
ROLES = ("operator", "developer", "agent", "workflow")
BACKENDS = ("llama_cpp", "command", "ollama", "vllm", "strata", "sd_server")
ENDPOINTS = ("chat", "completions", "responses", "embeddings", "rerank", "images")
ENDPOINTS_OF_KIND = {
    "chat": ["chat", "completions", "responses"],
    "vision": ["chat", "completions", "responses"],
    "embedding": ["embeddings"],
    "rerank": ["rerank"],
    "image": ["images"],
}
AGENT_CONTEXT = 64000  # Hermes refuses a main model with less
POOL_PORT = 9100
GATEWAY_PORT = 4000


class Card(TypedDict):
    slot: str
    uuid: str
    memory_mib: int
    labels: List[str]  # its own and its host's


class Host(TypedDict):
    address: str
    local_only: bool
    cards: List[Card]
    pool: Dict[str, Any]


class Model(TypedDict):
    kind: str
    backend: str
    file: Optional[str]
    mmproj: Optional[str]
    context: int
    parallel: int
    cache_type: str
    memory_mib: int
    labels: List[str]  # the model's and its backend's
    endpoints: List[str]
    dimensions: Optional[int]
    argv: List[str]
    env: Dict[str, str]
    ready: Optional[str]
    declared_context: Optional[int]


class HostedModel(TypedDict):
    provider: str
    litellm: str  # LiteLLM's name of the model, provider prefix included
    api_base: Optional[str]
    key_env: str
    classes: List[str]
    context: int
    kinds: List[str]
    dimensions: Optional[int]


class Alias(TypedDict):
    tier: str
    kind: str
    model: Optional[str]
    agent: bool
    smaller_context: bool
    description: str
    chains: Dict[str, List[str]]  # class -> links in order; a class without a chain is refused


class Identity(TypedDict):
    name: str
    role: str
    key_sha256: str
    min_class: str
    aliases: List[str]
    tailnet: List[str]


class Aperture(TypedDict):
    admin: str
    identity: str
    retention: str
    compatibility: Dict[str, bool]


class Hermes(TypedDict):
    identity: str
    base_url: str
    main: str
    delegate: str
    vision: Optional[str]
    small: str
    max_tokens: int


class Catalog(TypedDict):
    version: int
    hosts: Dict[str, Host]
    models: Dict[str, Model]
    hosted: Dict[str, HostedModel]  # by provider/model
    aliases: Dict[str, Alias]
    identities: List[Identity]
    placement: Dict[str, Dict[str, List[str]]]  # local model -> host -> slots that hold it
    aperture: Optional[Aperture]
    hermes: Optional[Hermes]


def local_link(model: str) -> str:
    """The name of a local model as a link of a chain, and as a group of the gateway."""
    return "model:" + model


def hosted_link(name: str) -> str:
    """The name of a hosted `provider/model` as a link of a chain, and as a group of the gateway."""
    return "hosted:" + name


def is_hosted(link: str) -> bool:
    """Whether this link of a chain leaves the fleet."""
    return not link.startswith("model:")


def link_context(catalog_models: Dict[str, Model], hosted: Dict[str, HostedModel], link: str) -> int:
    """Tokens of context that a link promises (`declared_context` of a test model counts)."""
    name = link.split(":", 1)[1]
    if is_hosted(link):
        return hosted[name]["context"]
    model = catalog_models[name]
    return model["declared_context"] or model["context"]


def http(address: str, port: int) -> str:
    """`http://address:port`, IPv6 in brackets."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
