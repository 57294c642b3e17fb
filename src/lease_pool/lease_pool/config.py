"""The pool's configuration (DESIGN.md 4.2): one schema, all faults at once, each in the operator's words.

`load(path)` returns a frozen `PoolConfig` or raises `ConfigError` whose `faults` are one line each: file, key, value, what is allowed.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StringConstraints, ValidationError, model_validator

from lease_pool import config_cross, config_shape
from lease_pool.backends import BACKENDS

DEFAULT_PATH = Path("/etc/gpu-fleet/pool.yml")

Slot = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")]
Uuid = Annotated[str, StringConstraints(pattern=r"^[^\s,\x00-\x1f\x7f]{1,128}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[^\s\x00-\x1f\x7f]{1,200}$")]
Label = Annotated[str, StringConstraints(pattern=r"^[^\s\x00-\x1f\x7f]{1,64}$")]
UrlPath = Annotated[str, StringConstraints(pattern=r"^/[^\s]*$")]
AbsolutePath = Annotated[Path, Field(strict=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
EndpointName = Literal["chat", "completions", "responses", "embeddings", "rerank", "images"]
BackendName = Literal["llama_cpp", "command", "ollama", "vllm", "strata", "sd_server"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]


class ConfigError(Exception):
    """The configuration cannot be used; `faults` has one line a fault."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ListenConfig(_Strict):
    host: Annotated[str, StringConstraints(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 9100


class CardConfig(_Strict):
    """One GPU of this host. `memory_mib` is required with `card_source: declared`; with `nvml` the driver's figure is used."""

    slot: Slot
    uuid: Uuid
    memory_mib: Count | None = None
    labels: list[Label] = []


class IdleWorkloadConfig(_Strict):
    """What runs on an unleased card."""

    driver: Literal["per_card", "shared", "command", "none"]
    unit: Annotated[str, StringConstraints(pattern=r"^[^\s/]+\.service$")] | None = None
    start: list[str] = []
    stop: list[str] = []
    alive: list[str] = []

    @property
    def unit_template(self) -> str:
        """The idle workload's unit with `{slot}` unfilled; the default of the driver where none is given."""
        return self.unit or ("gpu-miner.service" if self.driver == "shared" else "gpu-miner@{slot}.service")


class ModelConfig(_Strict):
    """One model that this pool can serve."""

    _name: str = PrivateAttr(default="")

    backend: BackendName
    memory_mib: Count
    file: AbsolutePath | None = None
    mmproj: AbsolutePath | None = None
    context: Count | None = None
    cache_type: CacheType = "f16"
    dimensions: Count | None = None
    parallel: Count = 1
    endpoints: list[EndpointName] = ["chat", "completions", "responses"]
    labels: list[Label] = []
    argv: list[str] = []
    env: dict[str, str] = {}
    ready: UrlPath | None = None
    aliases: list[Name] = []

    @property
    def name(self) -> str:
        return self._name

    @property
    def names(self) -> list[str]:
        """The model's own name and its aliases, each once."""
        return list(dict.fromkeys([self._name, *self.aliases]))

    @property
    def ready_path(self) -> str:
        return self.ready or BACKENDS[self.backend].ready_path


class BoundsConfig(_Strict):
    """Every wait's bound: seconds, except `queue` (waiters) and `body_mib`."""

    queue: Count = 64
    queue_s: Positive = 60
    free_s: Positive = 10
    ready_s: Positive = 120
    first_byte_s: Positive = 300
    stall_s: Positive = 60
    request_s: Positive = 1800
    stop_s: Positive = 5
    drain_s: Positive = 60
    ping_s: Positive = 10
    body_mib: Positive = 32


class PoolConfig(_Strict):
    """`/etc/gpu-fleet/pool.yml`."""

    listen: ListenConfig = ListenConfig()
    admin_socket: AbsolutePath = Path("/run/gpu-fleet/pool.sock")
    token_file: AbsolutePath = Path("/etc/gpu-fleet/pool.token")
    state_dir: AbsolutePath = Path("/var/lib/gpu-fleet")
    runtime_dir: AbsolutePath = Path("/run/gpu-fleet")
    locks_dir: AbsolutePath = Path("/run/gpu-fleet/cards")
    supervisor: Literal["systemd", "process"] = "systemd"
    card_source: Literal["nvml", "declared"] = "nvml"
    cards: Annotated[list[CardConfig], Field(min_length=1)]
    idle_workload: IdleWorkloadConfig = IdleWorkloadConfig(driver="per_card")
    servers: dict[BackendName, Annotated[list[str], Field(min_length=1)]] = {}
    models: dict[Name, ModelConfig]
    window_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    bounds: BoundsConfig = BoundsConfig()

    @model_validator(mode="before")
    @classmethod
    def _derived_defaults(cls, data: Any) -> Any:
        """Defaults that follow from other keys: folders under `runtime_dir`, no idle workload without systemd."""
        if not isinstance(data, dict):
            return data
        filled = dict(data)
        runtime = data.get("runtime_dir")
        if isinstance(runtime, str):
            filled.setdefault("locks_dir", f"{runtime}/cards")
            filled.setdefault("admin_socket", f"{runtime}/pool.sock")
        if data.get("supervisor") == "process":
            filled.setdefault("idle_workload", {"driver": "none"})
        return filled

    @model_validator(mode="after")
    def _name_models(self) -> PoolConfig:
        for name, model in self.models.items():
            model._name = name
        return self

    def resolve(self, name: str) -> ModelConfig | None:
        """The model that answers to this name or alias."""
        model = self.models.get(name)
        if model is not None:
            return model
        return next((m for m in self.models.values() if name in m.aliases), None)

    def server(self, backend: str) -> list[str]:
        """The command a backend runs: the configured one, or the backend's own default."""
        for name, argv in self.servers.items():
            if name == backend:
                return list(argv)
        return list(BACKENDS[backend].server)


def schema() -> dict[str, Any]:
    """The JSON schema of the configuration file."""
    return PoolConfig.model_json_schema()


def load(path: str | Path) -> PoolConfig:
    """Read and check a configuration file. Raises ConfigError with every fault."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"]) from None
    return parse(text, str(path))


def parse(text: str, source: str) -> PoolConfig:
    """Check a configuration's text; `source` names it in the faults."""
    try:
        data = yaml.load(text, Loader=_UniqueKeys)  # noqa: S506  a SafeLoader that also refuses duplicate keys
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise ConfigError([f"{source}: {where}not valid YAML: {getattr(error, 'problem', None) or error}"]) from None
    if not isinstance(data, dict):
        raise ConfigError([f"{source}: (whole file): {config_shape.shown(data)}: must be a mapping with the keys of pool.yml"])
    faults: list[config_shape.Fault] = []
    config: PoolConfig | None = None
    try:
        config = PoolConfig.model_validate(data)
    except ValidationError as error:
        faults += config_shape.faults(error, _known_keys)
    faults += config_cross.faults(data)
    if config is None or faults:
        raise ConfigError(list(dict.fromkeys(f"{source}: {key}: {value}: {allowed}" for key, value, allowed in faults)))
    return config


class _UniqueKeys(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys in silence: the operator would never know."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            if isinstance(key, Hashable):
                seen.add(key)
        return super().construct_mapping(node, deep)


def _known_keys(location: list[Any]) -> list[str]:
    tables: dict[str, type[BaseModel]] = {
        "listen": ListenConfig,
        "cards": CardConfig,
        "idle_workload": IdleWorkloadConfig,
        "models": ModelConfig,
        "bounds": BoundsConfig,
    }
    table = tables.get(str(location[0]), PoolConfig) if location else PoolConfig
    return list(table.model_fields)
