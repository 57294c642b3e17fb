"""A model's launch spec for one card: its backend's command with everything filled in that only the configuration and the card decide."""

from __future__ import annotations

from lease_pool.backends import BACKENDS
from lease_pool.config import CardConfig, ModelConfig, PoolConfig
from lease_pool.types import LaunchSpec


def launch_spec(config: PoolConfig, model: ModelConfig, card: CardConfig) -> LaunchSpec:
    backend = BACKENDS[model.backend]
    known = {
        "{uuid}": card.uuid,
        "{slot}": card.slot,
        "{file}": str(model.file or ""),
        "{context}": str(model.context or ""),
        "{parallel}": str(model.parallel),
    }
    raw = [*config.server(model.backend), *backend.arguments(model), *model.argv]
    argv = tuple(_fill(argument, known) for argument in raw)
    # An unset context or file must not become an empty variable that the server would read as "0" or ".".
    env = {k: _fill(v, known) for k, v in backend.env.items() if _fill(v, known)} | {k: _fill(v, known) for k, v in model.env.items()}
    wants_port = any("{port}" in text or "{host}" in text for text in (*argv, *env.values()))
    return LaunchSpec(
        slot=card.slot,
        uuid=card.uuid,
        model=model.name,
        argv=argv,
        env=env,
        memory_mib=model.memory_mib,
        free_s=config.bounds.free_s,
        stop_s=config.bounds.stop_s,
        needs_port=backend.needs_port or wants_port,
        ready_path=model.ready_path,
    )


def _fill(text: str, known: dict[str, str]) -> str:
    for placeholder, value in known.items():
        text = text.replace(placeholder, value)
    return text
