"""The decision that everything else enforces: given a key, a data class and an approval, what may this request reach?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway_guard.grants import DATA_CLASSES, Grants, KeyGrant, Route

CLOSED, OPEN, APPROVED = "closed", "open", "approved"


class Refusal(Exception):
    """A request that is not served; `status` is the HTTP status, the message is for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Access:
    """What one request may do.

    aliases: names the client may say, each with the model group that it enters; groups: every group the request may reach,
    fallbacks included; crossing: whether it may leave the fleet (`closed`, `open`, `approved`).
    """

    principal: str
    role: str
    data_class: str
    crossing: str
    aliases: Mapping[str, Route]
    groups: frozenset[str]
    request_id: str

    @property
    def may_cross(self) -> bool:
        return self.crossing in (OPEN, APPROVED)


def claimed_class(values: list[str]) -> str:
    """Return the data class that the client names: absent is `restricted`; anything unclear is refused, never guessed."""
    if not values:
        return "restricted"
    if len(values) > 1:
        raise Refusal(400, "x-data-class was sent more than once")
    name = values[0].strip().lower()
    if name not in DATA_CLASSES:
        raise Refusal(400, f"x-data-class must be one of {', '.join(DATA_CLASSES)}")
    return name


def decide(key: KeyGrant, grants: Grants, data_class: str, approved: bool, request_id: str) -> Access:
    """Return the access of a request of `key` with this data class; raises Refusal when there is none.

    Only `public` crosses by itself, only `internal` by approval; an unapproved `internal` request takes the restricted routes.
    """
    if DATA_CLASSES.index(data_class) < DATA_CLASSES.index(key.min_class):
        raise Refusal(403, f"this key may not claim a data class below {key.min_class}")
    if approved and data_class != "internal":
        raise Refusal(403, "only internal requests can be approved to leave the fleet")
    crossing = OPEN if data_class == "public" else APPROVED if approved else CLOSED
    routes = grants.routes[data_class if crossing != CLOSED else "restricted"]
    aliases: dict[str, Route] = {}
    for alias in key.local | key.hosted:
        route = routes.get(alias)
        if route is not None and (crossing != CLOSED or not route.hosted):
            aliases[alias] = route
        elif alias in key.local and "/" in alias and not grants.is_routed(alias):
            aliases[alias] = Route(alias, (), False)  # a node alias is its own group, in every class
    if not aliases:
        raise Refusal(403, "this key has no models for this data class")  # an empty list would mean all models to LiteLLM
    groups = frozenset(name for route in aliases.values() for name in (route.group, *route.fallbacks))
    return Access(key.name, key.role, data_class, crossing, aliases, groups, request_id)
