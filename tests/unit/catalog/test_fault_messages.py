"""Every fault as an operator reads it: one line, the variable's path, what was found, what is allowed; nothing else beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_expand import faults_of
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_input import UNREADABLE

from tests.support.fleets import everywhere, fleet, key_sha256, put, uuid

Inventory = dict[str, dict[str, Any]]


def on(host: str, *keys: str | int, value: Any) -> Callable[[Inventory], Inventory]:
    """Change one host's variable."""

    def change(inventory: Inventory) -> Inventory:
        put(inventory[host], *keys, value=value)
        return inventory

    return change


def everyone(variable: str, *keys: str | int, value: Any) -> Callable[[Inventory], Inventory]:
    """Change a group variable."""
    return lambda inventory: everywhere(inventory, variable, *keys, value=value)


CASES: dict[str, tuple[Callable[[Inventory], Inventory], list[str]]] = {
    "an empty group": (lambda f: {}, ["gpu_hosts: (missing): the inventory group needs at least one host"]),
    "no address": (
        on("gpu-01", "fleet_address", value=...),
        ["gpu-01: fleet_address: (missing): must be the IP address that other hosts reach this host by"],
    ),
    "an address that is a name": (
        on("gpu-01", "fleet_address", value="gpu-01.example"),
        ['gpu-01: fleet_address: "gpu-01.example": must be an IP address without port or name'],
    ),
    "an address with a port": (
        on("gpu-01", "fleet_address", value="10.0.0.1:9100"),
        ['gpu-01: fleet_address: "10.0.0.1:9100": must be an IP address without port or name'],
    ),
    "every address": (
        on("gpu-01", "fleet_address", value="0.0.0.0"),
        ['gpu-01: fleet_address: "0.0.0.0": must be one address that other hosts reach this host by'],
    ),
    "a public address without firewall": (
        on("gpu-01", "fleet_address", value="203.0.113.7"),
        [
            'gpu-01: fleet_address: "203.0.113.7": is a public address: use the tailnet\'s or a private one, or set fleet_firewall_enabled: true'
        ],
    ),
    "two hosts with one address": (
        on("gpu-02", "fleet_address", value="100.64.0.2"),
        ['gpu-02: fleet_address: "100.64.0.2": is gpu-01\'s already: each host needs its own'],
    ),
    "no cards": (
        on("gpu-01", "fleet_cards", value=...),
        ["gpu-01: fleet_cards: (missing): must list at least one card {slot, uuid, memory_mib}"],
    ),
    "an empty list of cards": (
        on("gpu-01", "fleet_cards", value=[]),
        ["gpu-01: fleet_cards: []: must list at least one card {slot, uuid, memory_mib}"],
    ),
    "a card without UUID": (
        on("gpu-01", "fleet_cards", 0, "uuid", value=...),
        [
            "gpu-01: fleet_cards[0].uuid: (missing): must be the card's NVML UUID: GPU- and 32 hex digits in groups of 8-4-4-4-12 (nvidia-smi -L shows it)"
        ],
    ),
    "a card by its index": (
        on("gpu-01", "fleet_cards", 0, "uuid", value=0),
        [
            "gpu-01: fleet_cards[0].uuid: 0: must be the card's NVML UUID: GPU- and 32 hex digits in groups of 8-4-4-4-12 (nvidia-smi -L shows it)"
        ],
    ),
    "a shortened UUID": (
        on("gpu-01", "fleet_cards", 0, "uuid", value="GPU-6a1d9f0e"),
        [
            'gpu-01: fleet_cards[0].uuid: "GPU-6a1d9f0e": must be the card\'s NVML UUID: GPU- and 32 hex digits in groups of 8-4-4-4-12 (nvidia-smi -L shows it)'
        ],
    ),
    "a MIG instance under systemd": (
        on("gpu-01", "fleet_cards", 0, "uuid", value="MIG-6a1d9f0e-3c1b-4f0e-9d8a-000000000001"),
        [
            'gpu-01: fleet_cards[0].uuid: "MIG-6a1d9f0e-3c1b-4f0e-9d8a-000000000001": MIG instances need fleet_pool.supervisor: process; under systemd give whole cards'
        ],
    ),
    "a card that is not a mapping": (
        on("gpu-01", "fleet_cards", 0, value="GPU-1"),
        ['gpu-01: fleet_cards[0]: "GPU-1": must be a mapping with the keys slot, uuid, memory_mib, labels'],
    ),
    "memory as text": (
        on("gpu-01", "fleet_cards", 0, "memory_mib", value="12 GiB"),
        ['gpu-01: fleet_cards[0].memory_mib: "12 GiB": must be a whole number of at least 1'],
    ),
    "no memory": (
        on("gpu-01", "fleet_cards", 0, "memory_mib", value=0),
        ["gpu-01: fleet_cards[0].memory_mib: 0: must be a whole number of at least 1"],
    ),
    "a slot with a slash": (
        on("gpu-01", "fleet_cards", 0, "slot", value="c/0"),
        ["gpu-01: fleet_cards[0].slot: \"c/0\": must be 1 to 32 letters, digits, '_' or '-', such as c0"],
    ),
    "a slot twice": (
        on("gpu-01", "fleet_cards", 1, "slot", value="c0"),
        ['gpu-01: fleet_cards[1].slot: "c0": is fleet_cards[0].slot already: each card needs its own'],
    ),
    "a UUID twice on one host": (
        on("gpu-01", "fleet_cards", 1, "uuid", value=uuid(1, 0)),
        [
            'gpu-01: fleet_cards[1].uuid: "GPU-00000001-0000-4000-8000-000000000000": is fleet_cards[0].uuid already: each card needs its own'
        ],
    ),
    "a UUID on two hosts": (
        on("gpu-02", "fleet_cards", 0, "uuid", value=uuid(1, 0)),
        ['gpu-02: fleet_cards[0].uuid: "GPU-00000001-0000-4000-8000-000000000000": is on gpu-01 already: a card is on one host'],
    ),
    "an unknown key of a card": (
        on("gpu-01", "fleet_cards", 0, "index", value=0),
        ["gpu-01: fleet_cards[0].index: unknown key: must be one of slot, uuid, memory_mib, labels"],
    ),
    "a label with a space": (
        on("gpu-01", "fleet_labels", value=["rtx 3060"]),
        ["gpu-01: fleet_labels[0]: \"rtx 3060\": must be 1 to 63 letters, digits, '.', '_', '=' or '-'"],
    ),
    "labels as text": (on("gpu-01", "fleet_labels", value="ampere"), ['gpu-01: fleet_labels: "ampere": must be a list']),
    "a switch as text": (on("gpu-01", "fleet_local_only", value="yes"), ['gpu-01: fleet_local_only: "yes": must be true or false']),
    "no wallet": (
        everyone("gpu_miner_wallet", value=...),
        [
            "every host: gpu_miner_wallet: (missing): must be the wallet that idle cards mine to, or fleet_pool.idle_workload must be {driver: none}"
        ],
    ),
    "an empty wallet": (
        on("gpu-01", "gpu_miner_wallet", value=""),
        [
            "gpu-01: gpu_miner_wallet: (empty): must be the wallet that idle cards mine to, or fleet_pool.idle_workload must be {driver: none}"
        ],
    ),
    "an unknown pool setting": (
        on("gpu-01", "fleet_pool", value={"port": 9200}),
        ["gpu-01: fleet_pool.port: unknown key: must be one of window_s, bounds, servers, idle_workload, supervisor, card_source"],
    ),
    "a bound of zero": (
        on("gpu-01", "fleet_pool", value={"bounds": {"queue": 0}}),
        ["gpu-01: fleet_pool.bounds.queue: 0: must be a whole number of at least 1"],
    ),
    "a host with a space in its name": (
        lambda f: {"gpu 1": f["gpu-01"]},
        [
            "gpu_hosts: \"gpu 1\": a host's name must be 1 to 64 letters, digits, '.', '_' or '-', beginning and ending with a letter or digit"
        ],
    ),
    "group variables that differ": (
        on("gpu-02", "fleet_models", "embed", "memory_mib", value=1501),
        ["fleet_models: gpu-01 and gpu-02 have different values: must be the same on every host: set it for the group gpu_hosts"],
    ),
    "a variable that cannot be templated": (
        everyone("fleet_pool_token", value={UNREADABLE: "'vault_pool_token' is undefined"}),
        ["fleet_pool_token: cannot be templated: 'vault_pool_token' is undefined"],
    ),
    "no kind": (
        everyone("fleet_models", "embed", "kind", value="embeddings"),
        ['fleet_models.embed.kind: "embeddings": must be one of chat, vision, embedding, rerank, image'],
    ),
    "an unknown backend": (
        everyone("fleet_models", "embed", "backend", value="llama.cpp"),
        ['fleet_models.embed.backend: "llama.cpp": must be one of llama_cpp, command, ollama, vllm, strata, sd_server'],
    ),
    "no file": (
        everyone("fleet_models", "embed", "file", value=...),
        ["fleet_models.embed.file: (missing): must be an absolute path without spaces"],
    ),
    "a relative file": (
        everyone("fleet_models", "embed", "file", value="models/embed.gguf"),
        ['fleet_models.embed.file: "models/embed.gguf": must be an absolute path without spaces'],
    ),
    "a vision model without projector": (
        everyone("fleet_models", "gemma-vision", "mmproj", value=...),
        ["fleet_models.gemma-vision.mmproj: (missing): must be an absolute path without spaces"],
    ),
    "no context": (
        everyone("fleet_models", "embed", "context", value=...),
        ["fleet_models.embed.context: (missing): must be a whole number of at least 1"],
    ),
    "a context as text": (
        everyone("fleet_models", "embed", "context", value="8K"),
        ['fleet_models.embed.context: "8K": must be a whole number of at least 1'],
    ),
    "parallel of zero": (
        everyone("fleet_models", "embed", "parallel", value=0),
        ["fleet_models.embed.parallel: 0: must be a whole number of at least 1"],
    ),
    "an unknown cache type": (
        everyone("fleet_models", "embed", "cache_type", value="q3"),
        ['fleet_models.embed.cache_type: "q3": must be one of f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl'],
    ),
    "memory given twice": (
        everyone("fleet_models", "embed", "weights_mib", value=400),
        ["fleet_models.embed.weights_mib: 400: memory_mib is given: leave out one or the other"],
    ),
    "no memory figures": (
        everyone("fleet_models", "granite-8b", "kv_bytes_per_token", value=...),
        ["fleet_models.granite-8b.kv_bytes_per_token: (missing): must be a whole number of at least 1"],
    ),
    "a command without argv": (
        everyone("fleet_models", "embed", value={"kind": "embedding", "backend": "command", "context": 512, "memory_mib": 100}),
        ["fleet_models.embed.argv: (missing): is required for backend command: the server's whole command line"],
    ),
    "numbers in argv": (
        everyone("fleet_models", "embed", "argv", value=["--batch-size", 512]),
        ['fleet_models.embed.argv: ["--batch-size", 512]: must be a list of strings (quote numbers)'],
    ),
    "an endpoint of another kind": (
        everyone("fleet_models", "embed", "endpoints", value=["chat"]),
        ['fleet_models.embed.endpoints: ["chat"]: kind embedding answers embeddings'],
    ),
    "dimensions of a chat model": (
        everyone("fleet_models", "gemma-1b", "dimensions", value=768),
        ["fleet_models.gemma-1b.dimensions: 768: belongs to kind embedding"],
    ),
    "an unknown key of a model": (
        everyone("fleet_models", "embed", "ctx", value=512),
        [
            "fleet_models.embed.ctx: unknown key: must be one of kind, backend, file, mmproj, context, parallel, cache_type, weights_mib, kv_bytes_per_token, overhead_mib, memory_mib, labels, endpoints, dimensions, argv, ready, env, declared_context"
        ],
    ),
    "models as a list": (
        everyone("fleet_models", value=["granite-8b"]),
        ['fleet_models: ["granite-8b"]: must be a mapping of local models'],
    ),
    "labels of an unknown backend": (
        everyone("fleet_backend_labels", value={"lama": ["ampere"]}),
        ["fleet_backend_labels.lama: unknown key: must be one of llama_cpp, command, ollama, vllm, strata, sd_server"],
    ),
    "no aliases": (
        lambda f: everywhere(everywhere(f, "fleet_aliases", value=...), "fleet_hermes", value=...),
        [
            "fleet_aliases: (missing): must declare at least one alias, such as t3-smart: {tier: T3, model: …}",
            'fleet_identities[1].aliases[0]: "t1-smart": must be an alias of fleet_aliases',
        ],
    ),
    "an alias in capitals": (
        everyone("fleet_aliases", "T3-Code", value={"tier": "T3", "model": "granite-8b"}),
        ['fleet_aliases.T3-Code: "T3-Code": an alias\' name is its tier and its job in small letters, such as t3-code'],
    ),
    "a comma list as an alias": (
        everyone("fleet_aliases", "t3-code,t1-smart", value={"tier": "T3", "model": "granite-8b"}),
        [
            "fleet_aliases.t3-code,t1-smart: \"t3-code,t1-smart\": must be 1 to 64 letters, digits, '.', '_' or '-', beginning and ending with a letter or digit"
        ],
    ),
    "an alias of another tier": (
        everyone("fleet_aliases", "t3-code", "tier", value="T4"),
        ['fleet_aliases.t3-code.tier: "T4": must be T3, as its name says'],
    ),
    "a local alias without model": (
        everyone("fleet_aliases", "t3-code", "model", value=...),
        ["fleet_aliases.t3-code.model: (missing): tier T3 is local: must name one of fleet_models"],
    ),
    "a hosted alias with a local model": (
        everyone("fleet_aliases", "t1-smart", "model", value="granite-8b"),
        ['fleet_aliases.t1-smart.model: "granite-8b": tier T1 is hosted: leave it out and list provider/model in chains'],
    ),
    "a hosted alias without chain": (
        everyone("fleet_aliases", "t1-smart", "chains", value={"public": []}),
        ['fleet_aliases.t1-smart.chains: {"public": []}: tier T1 is hosted: at least one data class needs a chain'],
    ),
    "an unknown model": (
        everyone("fleet_aliases", "t3-code", "model", value="granit-8b"),
        ['fleet_aliases.t3-code.model: "granit-8b": must name one of fleet_models (embed, gemma-1b, gemma-vision, granite-8b)'],
    ),
    "an unknown target": (
        everyone("fleet_aliases", "t3-code", "chains", value={"public": ["t2-coder"]}),
        [
            'fleet_aliases.t3-code.chains.public[0]: "t2-coder": must be an alias of fleet_aliases or a provider/model of fleet_hosted_providers'
        ],
    ),
    "an unknown class": (
        everyone("fleet_aliases", "t3-code", "chains", value={"secret": ["t3-smart"]}),
        ["fleet_aliases.t3-code.chains.secret: unknown key: must be one of public, internal, restricted"],
    ),
    "a comma list in a chain": (
        everyone("fleet_aliases", "t3-code", "chains", value={"restricted": ["t3-smart,t1-smart"]}),
        [
            'fleet_aliases.t3-code.chains.restricted[0]: "t3-smart,t1-smart": must be an alias or a provider/model, one an entry (no commas, no spaces)'
        ],
    ),
    "a target twice": (
        everyone("fleet_aliases", "t3-code", "chains", value={"public": ["t1-smart", "t1-smart"]}),
        ['fleet_aliases.t3-code.chains.public[1]: "t1-smart": must not be listed twice'],
    ),
    "a node alias in a chain": (
        everyone("fleet_aliases", "t3-code", "chains", value={"public": ["gpu-01/t3-smart"]}),
        ['fleet_aliases.t3-code.chains.public[0]: "gpu-01/t3-smart": is a node alias: those are for operators only and belong in no chain'],
    ),
    "a model in a chain": (
        everyone("fleet_aliases", "t3-code", "chains", value={"public": ["gemma-1b"]}),
        ['fleet_aliases.t3-code.chains.public[0]: "gemma-1b": is a model: name an alias that has it'],
    ),
    "a target that does not serve the class": (
        everyone("fleet_aliases", "t3-code", "chains", value={"restricted": ["t1-smart"]}),
        ['fleet_aliases.t3-code.chains.restricted[0]: "t1-smart": has no chain for restricted requests: give it one or leave it out'],
    ),
    "a chain to itself": (
        everyone("fleet_aliases", "t3-code", "chains", value={"public": ["t3-code"]}),
        ["fleet_aliases.t3-code.chains.public: t3-code -> t3-code: a chain must not lead back to an alias it came from"],
    ),
    "a loop of two": (
        everyone("fleet_aliases", "t3-code", "chains", value={"restricted": ["t2-code"]}),
        ["fleet_aliases.t2-code.chains.restricted: t2-code -> t3-code -> t2-code: a chain must not lead back to an alias it came from"],
    ),
    "restricted straight to hosted": (
        everyone("fleet_aliases", "t3-vision", "chains", value={"restricted": ["alpha/large"]}),
        [
            "fleet_aliases.t3-vision.chains.restricted: t3-vision -> hosted:alpha/large: restricted requests never leave the fleet: the chain may hold local aliases only"
        ],
    ),
    "restricted to hosted through an alias": (
        everyone("fleet_aliases", "t1-smart", "chains", "restricted", value=["beta/org/large"]),
        [
            "fleet_aliases.t1-smart.chains.restricted: t1-smart -> hosted:beta/org/large: restricted requests never leave the fleet: the chain may hold local aliases only"
        ],
    ),
    "internal to a public-only provider": (
        everyone("fleet_aliases", "t3-vision", "chains", value={"internal": ["alpha/large"]}),
        [
            "fleet_aliases.t3-vision.chains.internal: t3-vision -> hosted:alpha/large: fleet_hosted_providers.alpha.classes does not list internal"
        ],
    ),
    "a chain that cannot see": (
        everyone("fleet_aliases", "t3-vision", "chains", value={"public": ["beta/org/large"]}),
        ["fleet_aliases.t3-vision.chains.public: t3-vision -> hosted:beta/org/large (chat): every link of this alias must do vision"],
    ),
    "a chain to less context": (
        everyone("fleet_aliases", "t3-code", "chains", value={"public": ["t4-router"]}),
        [
            "fleet_aliases.t3-code.chains.public: t3-code -> model:gemma-1b with 32768 tokens of context: must not be less than the first link's 65536, or the alias says smaller_context: true"
        ],
    ),
    "an agent with too little context": (
        everyone("fleet_models", "granite-8b", "context", value=32768),
        [
            "fleet_aliases.t3-smart.agent: t3-smart -> model:granite-8b with 32768 tokens of context: an agent's main model needs at least 64000"
        ],
    ),
    "an embedding alias with a chain": (
        everyone("fleet_aliases", "t4-embedding", "chains", value={"public": ["alpha/embed"]}),
        [
            'fleet_aliases.t4-embedding.chains: ["hosted:alpha/embed", "model:embed"]: vectors of different models cannot be compared: an embedding alias has one model and no chain'
        ],
    ),
    "an alias that no card can hold": (
        everyone("fleet_models", "gemma-vision", "memory_mib", value=20000),
        [
            "fleet_aliases.t3-vision.model: gemma-vision needs 20000 MiB and ampere: no card can hold it: the largest card with the labels ampere has 12288 MiB (gpu-01 c0)"
        ],
    ),
    "an alias whose labels no card has": (
        everyone("fleet_models", "gemma-vision", "labels", value=["hopper"]),
        ["fleet_aliases.t3-vision.model: gemma-vision needs 9000 MiB and hopper: no card can hold it: no card has the label hopper"],
    ),
    "a kind that the model does not do": (
        everyone("fleet_aliases", "t3-code", "kind", value="vision"),
        ['fleet_aliases.t3-code.kind: "vision": its model granite-8b does chat'],
    ),
    "a name of two things": (
        lambda f: everywhere(f, "fleet_models", "gpu-01", value=f["gpu-01"]["fleet_models"]["gemma-1b"]),
        ['fleet_models.gpu-01: "gpu-01": is a host of gpu_hosts already: hosts, models, aliases and providers need names of their own'],
    ),
    "a hosted id that is a local name": (
        everyone("fleet_hosted_providers", "beta", "models", "t3-code", value={"context": 200000}),
        [
            'fleet_hosted_providers.beta.models.t3-code: "t3-code": is the name of a local model or alias already: the gateway could not tell them apart'
        ],
    ),
    "a key instead of its variable's name": (
        everyone("fleet_hosted_providers", "alpha", "key_env", value="sk-live-abcdef"),
        [
            "fleet_hosted_providers.alpha.key_env: (not shown): must be the name of an environment variable that starts with FLEET_ (never the key itself)"
        ],
    ),
    "a standard key variable": (
        everyone("fleet_hosted_providers", "alpha", "key_env", value="ANTHROPIC_API_KEY"),
        [
            "fleet_hosted_providers.alpha.key_env: (not shown): must be the name of an environment variable that starts with FLEET_ (never the key itself)"
        ],
    ),
    "a provider for restricted data": (
        everyone("fleet_hosted_providers", "beta", "classes", value=["public", "internal", "restricted"]),
        ['fleet_hosted_providers.beta.classes[2]: "restricted": must be one of public, internal'],
    ),
    "a provider without classes": (
        everyone("fleet_hosted_providers", "alpha", "classes", value=...),
        ["fleet_hosted_providers.alpha.classes: (missing): must list the data classes that may go there: public, internal"],
    ),
    "an OpenAI-shaped provider without address": (
        everyone("fleet_hosted_providers", "beta", "api_base", value=...),
        ["fleet_hosted_providers.beta.api_base: (missing): must be an http(s) URL without user, query or fragment"],
    ),
    "a password in an address": (
        everyone("fleet_hosted_providers", "beta", "api_base", value="https://user:secret@beta.example"),
        ["fleet_hosted_providers.beta.api_base: (not shown): must be an http(s) URL without user, query or fragment"],
    ),
    "a hosted model without context": (
        everyone("fleet_hosted_providers", "alpha", "models", "large", value={}),
        ["fleet_hosted_providers.alpha.models.large.context: (missing): must be a whole number of at least 1"],
    ),
    "no identities": (
        everyone("fleet_identities", value=...),
        ["fleet_identities: (missing): must list at least one identity {name, role, key_sha256, tiers}"],
    ),
    "a key instead of its digest": (
        everyone("fleet_identities", 1, "key_sha256", value="sk-live-abcdef"),
        ["fleet_identities[1].key_sha256: (not shown): must be the SHA-256 of the API key: 64 small hex digits (never the key itself)"],
    ),
    "the digest of an empty key": (
        everyone("fleet_identities", 1, "key_sha256", value=hashlib.sha256(b"").hexdigest()),
        ["fleet_identities[1].key_sha256: (not shown): is the SHA-256 of an empty key"],
    ),
    "two identities with one key": (
        everyone("fleet_identities", 1, "key_sha256", value=key_sha256("olga")),
        ["fleet_identities[1].key_sha256: (not shown): is fleet_identities[0]'s already: each identity needs its own"],
    ),
    "two identities with one name": (
        everyone("fleet_identities", 1, "name", value="olga"),
        ['fleet_identities[1].name: "olga": is fleet_identities[0]\'s already: each identity needs its own'],
    ),
    "an unknown role": (
        everyone("fleet_identities", 1, "role", value="admin"),
        ['fleet_identities[1].role: "admin": must be one of operator, developer, agent, workflow'],
    ),
    "an unknown tier": (
        everyone("fleet_identities", 1, "tiers", value=["T5"]),
        ['fleet_identities[1].tiers[0]: "T5": must be one of T0, T1, T2, T3, T4'],
    ),
    "an unknown alias granted": (
        everyone("fleet_identities", 1, "aliases", value=["t1-clever"]),
        ['fleet_identities[1].aliases[0]: "t1-clever": must be an alias of fleet_aliases'],
    ),
    "a node alias for a developer": (
        everyone("fleet_identities", 1, "aliases", value=["gpu-01/t3-code"]),
        [
            'fleet_identities[1].aliases[0]: "gpu-01/t3-code": node aliases belong to operators only: role operator has them all, others none'
        ],
    ),
    "an alias that its class never reaches": (
        everyone("fleet_identities", 1, "min_class", value="restricted"),
        ['fleet_identities[1].aliases[0]: "t1-smart": can never be used with min_class restricted: the alias has no chain for it'],
    ),
    "an identity without grants": (
        everyone("fleet_identities", 1, value={"name": "dev", "role": "developer", "key_sha256": key_sha256("dev")}),
        ["fleet_identities[1].tiers: (missing): must grant something: tiers, aliases or both"],
    ),
    "everyone in the tailnet": (
        everyone("fleet_identities", 1, "tailnet", value=["*"]),
        ["fleet_identities[1].tailnet[0]: \"*\": must be a login (anna@example.com), group:NAME or tag:NAME; '*' is everyone and refused"],
    ),
    "one tailnet source for two identities": (
        everyone("fleet_identities", 1, "tailnet", value=["olga@example.com"]),
        [
            'fleet_identities[1].tailnet[0]: "olga@example.com": is fleet_identities[0]\'s already: grants only add up, so a source has one identity'
        ],
    ),
    "no pool token": (
        everyone("fleet_pool_token", value=...),
        ["fleet_pool_token: (missing): must be a random token of at least 32 characters (from the vault)"],
    ),
    "a short pool token": (
        everyone("fleet_pool_token", value="secret"),
        ["fleet_pool_token: (not shown): must be a string of at least 32 characters without white space"],
    ),
    "a short token that is accepted too": (
        everyone("fleet_pool_tokens_accepted", value=["secret", "s" * 32]),
        ["fleet_pool_tokens_accepted[0]: (not shown): must be a string of at least 32 characters without white space"],
    ),
    "accepted tokens that are no list": (
        everyone("fleet_pool_tokens_accepted", value="s" * 32),
        ["fleet_pool_tokens_accepted: (not shown): must be a list of tokens"],
    ),
    "two admins of Aperture": (
        everyone("fleet_aperture", "admin", value=["a@example.com", "b@example.com"]),
        ['fleet_aperture.admin: ["a@example.com", "b@example.com"]: must be exactly one login, such as anna@example.com'],
    ),
    "an unknown identity of Aperture": (
        everyone("fleet_aperture", "identity", value="apperture"),
        ['fleet_aperture.identity: "apperture": must be the name of one of fleet_identities'],
    ),
    "an unknown flag of Aperture": (
        everyone("fleet_aperture", "compatibility", value={"openai_embeddings": True}),
        ["fleet_aperture.compatibility.openai_embeddings: unknown key: must be one of openai_chat, openai_responses, anthropic_messages"],
    ),
    "Hermes without main model": (
        everyone("fleet_hermes", "main", value=...),
        ["fleet_hermes.main: (missing): must be the alias of the agent's main model"],
    ),
    "Hermes with a small main model": (
        everyone("fleet_hermes", "main", value="t4-router"),
        ['fleet_hermes.main: "t4-router": an agent\'s main model needs at least 64000 tokens of context on every link; the least is 32768'],
    ),
    "Hermes with an alias it may not use": (
        everyone("fleet_hermes", "delegate", value="t1-smart"),
        ['fleet_hermes.delegate: "t1-smart": is not granted to hermes: add it to that identity in fleet_identities'],
    ),
    "Hermes with a blind vision model": (
        everyone("fleet_hermes", "vision", value="t3-code"),
        ['fleet_hermes.vision: "t3-code": must be an alias of kind vision'],
    ),
    "a host variable that cannot be templated": (
        lambda f: {name: {**v, "fleet_address": {UNREADABLE: "'tailnet' is undefined\nmore"}} for name, v in f.items()},
        [
            "gpu-01: fleet_address: cannot be templated: 'tailnet' is undefined",
            "gpu-02: fleet_address: cannot be templated: 'tailnet' is undefined",
            "gpu-03: fleet_address: cannot be templated: 'tailnet' is undefined",
        ],
    ),
    "an option that the pool sets": (
        everyone("fleet_models", "embed", "argv", value=["--api_key=sk-1"]),
        ['fleet_models.embed.argv[0]: "--api_key": is set by the pool: leave it out'],
    ),
    "an unknown bound": (
        on("gpu-01", "fleet_pool", value={"bounds": {"queue_ms": 5}}),
        [
            "gpu-01: fleet_pool.bounds.queue_ms: unknown key: must be one of queue, queue_s, free_s, ready_s, first_byte_s, stall_s, request_s, stop_s, drain_s, ping_s, body_mib"
        ],
    ),
    "a bound as text": (
        on("gpu-01", "fleet_pool", value={"bounds": {"ready_s": "2m"}}),
        ['gpu-01: fleet_pool.bounds.ready_s: "2m": must be a number above 0'],
    ),
    "a negative window": (
        on("gpu-01", "fleet_pool", value={"window_s": -1}),
        ["gpu-01: fleet_pool.window_s: -1: must be a number of seconds, 0 or more"],
    ),
    "an idle workload of the other supervisor": (
        on("gpu-01", "fleet_pool", value={"idle_workload": {"driver": "command"}}),
        ['gpu-01: fleet_pool.idle_workload.driver: "command": must be one of per_card, shared, none with supervisor systemd'],
    ),
    "a server that is no command line": (
        on("gpu-01", "fleet_pool", value={"servers": {"vllm": "vllm serve"}}),
        ['gpu-01: fleet_pool.servers.vllm: "vllm serve": must be a list of strings (quote numbers)'],
    ),
    "an unknown supervisor": (
        on("gpu-01", "fleet_pool", value={"supervisor": "docker"}),
        ['gpu-01: fleet_pool.supervisor: "docker": must be one of systemd, process'],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_operator_reads_exactly_the_faults_there_are(case: str) -> None:
    change, lines = CASES[case]
    assert faults_of(change(fleet())) == lines


def test_a_whole_inventory_has_no_fault() -> None:
    assert faults_of(fleet()) == []


def test_all_faults_come_at_once_sorted_and_each_on_one_line() -> None:
    inventory = fleet()
    expected: list[str] = []
    for case in ("a card without UUID", "an unknown model", "a short pool token", "a hosted model without context", "an unknown role"):
        change, lines = CASES[case]
        inventory = change(inventory)
        expected += lines
    found = faults_of(inventory)
    assert found == sorted(expected)
    assert not any("\n" in line for line in found)


def test_no_fault_shows_a_secret() -> None:
    secret = "sk-live-0123 canary"
    inventory = everywhere(fleet(), "fleet_pool_token", value=secret)
    for path in (("fleet_identities", 0, "key_sha256"), ("fleet_hosted_providers", "alpha", "key_env")):
        inventory = everywhere(inventory, *path, value=secret)
    inventory = everywhere(inventory, "fleet_hosted_providers", "beta", "api_base", value=f"https://user:{secret}@beta.example")
    inventory = everywhere(inventory, "fleet_models", "embed", "env", value={"TOKEN": [secret]})
    inventory = everywhere(inventory, "gpu_miner_wallet", value=[secret])
    found = faults_of(inventory)
    assert len(found) == 6
    assert secret not in "\n".join(found)


def test_an_alias_that_no_card_can_hold_is_named_beside_the_fault_of_another_host() -> None:
    inventory = fleet(2)
    first, second = sorted(inventory)
    inventory[first]["fleet_address"] = "nowhere"
    for host in (first, second):
        for card in inventory[host]["fleet_cards"]:
            card["memory_mib"] = 1024
    lines = faults_of(inventory)
    assert any("fleet_address" in line for line in lines)
    assert any("no card can hold it" in line for line in lines), lines
