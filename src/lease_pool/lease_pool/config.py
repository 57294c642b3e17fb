"""The pool's configuration (DESIGN.md 4.2): one schema, all faults at once, each in the operator's words.

`load(path)` returns a frozen `PoolConfig` or raises `ConfigError` whose `faults` are one line each: file, key, value, what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StringConstraints, ValidationError, model_validator

from lease_pool.backends import BACKENDS, forbidden_argument

DEFAULT_PATH = Path("/etc/gpu-fleet/pool.yml")
SOCKET_PATH_MAX = 107  # sun_path of a unix socket, without its final zero byte

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
        raise ConfigError([f"{source}: (whole file): {_shown(data)}: must be a mapping with the keys of pool.yml"])
    faults = []
    config: PoolConfig | None = None
    try:
        config = PoolConfig.model_validate(data)
    except ValidationError as error:
        faults = [_line(source, key, value, allowed) for key, value, allowed in _pydantic_faults(error)]
    faults += [_line(source, key, value, allowed) for key, value, allowed in _cross_faults(data)]
    if config is None or faults:
        raise ConfigError(list(dict.fromkeys(faults)))
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


def _line(source: str, key: str, value: str, allowed: str) -> str:
    return f"{source}: {key}: {value}: {allowed}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


_PATTERN_WORDS = {
    r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$": "1 to 32 letters, digits, '_' or '-', beginning with a letter or digit",
    r"^[^\s,\x00-\x1f\x7f]{1,128}$": "an NVML UUID such as GPU-…, without spaces or commas",
    r"^[^\s\x00-\x1f\x7f]{1,200}$": "1 to 200 characters without spaces",
    r"^[^\s\x00-\x1f\x7f]{1,64}$": "1 to 64 characters without spaces",
    r"^/[^\s]*$": "a path beginning with '/'",
    r"^[^\s/]+\.service$": "a unit name ending in .service",
}
_BOUND_WORDS = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
}
_TYPE_WORDS = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a string (quote it)",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "path_type": "must be a path",
    "string_too_short": "must not be empty",
}


def _pydantic_faults(error: ValidationError) -> Iterable[tuple[str, str, str]]:
    for fault in error.errors(include_url=False):
        kind, context = fault["type"], fault.get("ctx", {})
        location = [part for part in fault["loc"] if part != "[key]"]
        key = _key(location)
        value = "(not shown)" if "env" in location else _shown(fault["input"])
        if kind == "missing":
            yield key, "(missing)", "is required"
        elif kind == "extra_forbidden":
            yield key, value, f"unknown key; known here: {', '.join(_known_keys(location[:-1]))}"
        elif kind == "string_pattern_mismatch":
            yield key, value, "must be " + _PATTERN_WORDS.get(str(context.get("pattern")), str(fault["msg"]))
        elif kind == "literal_error":
            yield key, value, f"must be {context['expected']}"
        elif kind in ("greater_than", "greater_than_equal", "less_than_equal"):
            bounds = {
                "greater_than": ("greater than", "gt"),
                "greater_than_equal": ("at least", "ge"),
                "less_than_equal": ("at most", "le"),
            }
            words, name = bounds[kind]
            yield key, value, f"must be {words} {context[name]}"
        elif kind == "too_short":
            yield key, value, "must have at least one entry"
        else:
            yield key, value, _TYPE_WORDS.get(kind, fault["msg"]) + _shape_hint(location)


def _shape_hint(location: list[Any]) -> str:
    hints = {("listen",): " {host: ADDRESS, port: NUMBER}", ("bounds",): " of bounds", ("idle_workload",): " {driver: …}"}
    return hints.get(tuple(location), "")


def _key(location: Iterable[Any]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "(whole file)"


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


def _cross_faults(data: dict[Any, Any]) -> Iterable[tuple[str, str, str]]:
    """Faults between keys. Works on the raw data, so that it reports beside shape faults; what has the wrong shape it skips."""
    cards = [c for c in _list(data.get("cards")) if isinstance(c, dict)]
    models = {str(n): m for n, m in _dict(data.get("models")).items() if isinstance(m, dict)}
    yield from _card_faults(data, cards)
    yield from _alias_faults(models)
    yield from _path_faults(data, models)
    yield from _idle_faults(data)
    port = _dict(data.get("listen")).get("port", 9100)
    for name, model in models.items():
        yield from _model_faults(name, model, port)


def _card_faults(data: dict[Any, Any], cards: list[dict[Any, Any]]) -> Iterable[tuple[str, str, str]]:
    for field in ("slot", "uuid"):
        seen: dict[str, int] = {}
        for index, card in enumerate(cards):
            value = card.get(field)
            if not isinstance(value, str):
                continue
            # Slots become file and unit names, UUIDs are compared by NVML without regard to case.
            first = seen.setdefault(value.lower(), index)
            if first != index:
                yield f"cards[{index}].{field}", _shown(value), f"duplicate of cards[{first}].{field}; each card needs its own"
    for index, card in enumerate(cards):
        if data.get("card_source") == "declared" and "memory_mib" not in card:
            yield f"cards[{index}].memory_mib", "(missing)", "is required with card_source: declared"
        if data.get("supervisor", "systemd") == "systemd" and str(card.get("uuid", "")).startswith("MIG-"):
            yield (
                f"cards[{index}].uuid",
                _shown(card["uuid"]),
                "MIG instances need supervisor: process",
            )


def _alias_faults(models: dict[str, dict[Any, Any]]) -> Iterable[tuple[str, str, str]]:
    owner: dict[str, str] = {name: name for name in models}
    listed: set[tuple[str, str]] = set()
    for name, model in models.items():
        for index, alias in enumerate(_list(model.get("aliases"))):
            if not isinstance(alias, str):
                continue
            key = f"models.{name}.aliases[{index}]"
            if owner.setdefault(alias, name) != name:
                yield key, _shown(alias), f"duplicate: model {owner[alias]} already has this name"
            elif (name, alias) in listed:
                yield key, _shown(alias), "duplicate: listed twice"
            listed.add((name, alias))


def _path_faults(data: dict[Any, Any], models: dict[str, dict[Any, Any]]) -> Iterable[tuple[str, str, str]]:
    paths = {key: data.get(key) for key in ("admin_socket", "token_file", "state_dir", "runtime_dir", "locks_dir")}
    for name, model in models.items():
        paths |= {f"models.{name}.{key}": model.get(key) for key in ("file", "mmproj")}
    for key, value in paths.items():
        if isinstance(value, str) and not value.startswith("/"):
            yield key, _shown(value), "must be an absolute path"
    runtime = data.get("runtime_dir", "/run/gpu-fleet")
    if not isinstance(runtime, str):
        return
    sockets = {"admin_socket": data.get("admin_socket", f"{runtime}/pool.sock")}
    if data.get("supervisor") == "process":
        slots = [str(c.get("slot", "")) for c in _list(data.get("cards")) if isinstance(c, dict)]
        sockets["runtime_dir"] = f"{runtime}/{max(slots, key=len, default='')}.sock"
    for key, value in sockets.items():
        if isinstance(value, str) and len(value.encode()) > SOCKET_PATH_MAX:
            yield key, _shown(value), f"must be a shorter path: a unix socket's path has at most {SOCKET_PATH_MAX} bytes"


def _idle_faults(data: dict[Any, Any]) -> Iterable[tuple[str, str, str]]:
    idle = _dict(data.get("idle_workload"))
    driver, supervisor = idle.get("driver"), data.get("supervisor", "systemd")
    if driver in ("per_card", "shared") and supervisor == "process":
        yield "idle_workload.driver", _shown(driver), "needs supervisor: systemd; with supervisor: process use command or none"
    if driver == "command":
        if supervisor == "systemd":
            yield "idle_workload.driver", _shown(driver), "needs supervisor: process; with supervisor: systemd use per_card, shared or none"
        for key in ("start", "stop", "alive"):
            if not idle.get(key):
                yield f"idle_workload.{key}", "(missing)", "is required with driver: command"
        if idle.get("unit") is not None:
            yield "idle_workload.unit", _shown(idle["unit"]), "belongs to driver: per_card or shared"
    elif isinstance(driver, str):
        for key in ("start", "stop"):
            if idle.get(key):
                yield f"idle_workload.{key}", _shown(idle[key]), "belongs to driver: command"
    if driver == "per_card" and isinstance(idle.get("unit"), str) and "{slot}" not in idle["unit"]:
        yield "idle_workload.unit", _shown(idle["unit"]), "must contain {slot} with driver: per_card"


_OWN_ENV = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")


def _model_faults(name: str, model: dict[Any, Any], port: Any) -> Iterable[tuple[str, str, str]]:
    key, backend = f"models.{name}", model.get("backend")
    argv = [a for a in _list(model.get("argv")) if isinstance(a, str)]
    if backend == "llama_cpp" and model.get("file") is None:
        yield f"{key}.file", "(missing)", "is required with backend: llama_cpp"
    if backend == "command" and not model.get("argv"):
        yield f"{key}.argv", "(missing)", "is required with backend: command"
    if backend in BACKENDS and backend != "llama_cpp" and model.get("mmproj") is not None:
        yield f"{key}.mmproj", _shown(model["mmproj"]), "belongs to backend: llama_cpp"
    if isinstance(backend, str) and backend in BACKENDS:
        for index, argument in enumerate(argv):
            option = forbidden_argument(backend, argument)
            if option:
                yield f"{key}.argv[{index}]", _shown(argument), f"{option} is set by the pool; leave it out"
    if isinstance(port, int):
        for index, argument in enumerate(argv):
            if _is_listen_port(argv, index, port):
                yield f"{key}.argv[{index}]", _shown(argument), f"port clash: {port} is the pool's own (listen.port); use {{port}}"
    for variable, value in _dict(model.get("env")).items():
        if variable in _OWN_ENV:
            yield f"{key}.env.{variable}", _shown(value), "is set by the pool; leave it out"
        elif isinstance(variable, str) and (not variable or "=" in variable or "\x00" in variable):
            yield f"{key}.env.{variable}", _shown(value), "is not a variable's name"


def _is_listen_port(argv: list[str], index: int, port: int) -> bool:
    argument = argv[index]
    if argument.endswith(f":{port}"):
        return True
    option = (
        argv[index - 1] if index and argument == str(port) else argument.removesuffix(f"={port}") if argument.endswith(f"={port}") else ""
    )
    return re.search(r"port|listen|bind", option.lower()) is not None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}
