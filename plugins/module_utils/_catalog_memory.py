"""Memory fit: what a model needs on a card, and which cards hold it."""

from __future__ import annotations

from typing import Dict, List, Mapping

from ._catalog_model import Card, Host, Model

MIB = 1024 * 1024
DEFAULT_OVERHEAD_MIB = 512
# Size of a KV cache element against f16, as (numerator, denominator): blocks of 32 values (ggml's type table).
CACHE_SIZE = {
    "f32": (2, 1),
    "f16": (1, 1),
    "bf16": (1, 1),
    "q8_0": (34, 64),
    "q5_1": (24, 64),
    "q5_0": (22, 64),
    "q4_1": (20, 64),
    "q4_0": (18, 64),
    "iq4_nl": (18, 64),
}


def kv_mib(kv_bytes_per_token: int, cache_type: str, context: int, parallel: int) -> int:
    """MiB of KV cache for `parallel` requests of `context` tokens, rounded up; `kv_bytes_per_token` is at f16."""
    numerator, denominator = CACHE_SIZE[cache_type]
    return -(-kv_bytes_per_token * numerator * context * parallel // (denominator * MIB))


def holds(card: Card, model: Model) -> bool:
    """Whether this card can serve this model: enough memory, and all labels that the model asks for."""
    return model["memory_mib"] <= card["memory_mib"] and set(model["labels"]) <= set(card["labels"])


def place(hosts: Mapping[str, Host], models: Mapping[str, Model]) -> Dict[str, Dict[str, List[str]]]:
    """local model -> host -> slots that hold it; hosts without such a card are left out."""
    placement: Dict[str, Dict[str, List[str]]] = {}
    for name in sorted(models):
        model, on = models[name], {}
        for host in sorted(hosts):
            slots = [card["slot"] for card in hosts[host]["cards"] if holds(card, model)]
            if slots:
                on[host] = slots
        placement[name] = on
    return placement


def best_card(hosts: Mapping[str, Host], labels: List[str]) -> str:
    """The largest card that has these labels, in words, for the operator whose model fits nowhere."""
    fitting = [
        (card["memory_mib"], host, card["slot"])
        for host, known in hosts.items()
        for card in known["cards"]
        if set(labels) <= set(card["labels"])
    ]
    if not fitting:
        return "no card has the label" + ("s " if len(labels) > 1 else " ") + ", ".join(labels)
    memory, host, slot = min(fitting, key=lambda found: (-found[0], found[1], found[2]))
    return f"the largest card{' with the labels ' + ', '.join(labels) if labels else ''} has {memory} MiB ({host} {slot})"
