"""What is asked of gateways alike, before doubles and before real pools."""

from __future__ import annotations

import random
from typing import Any

SMALL_ALIASES = ("t3-smart", "t3-code", "t4-router")
# path, alias and body of one request to each endpoint
ENDPOINTS: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/chat/completions", "t3-smart", {}),
    ("/v1/chat/completions", "t3-smart", {"stream": True}),
    ("/v1/completions", "t3-smart", {"prompt": "x"}),
    ("/v1/responses", "t3-smart", {"input": "x"}),
    ("/v1/responses", "t3-smart", {"input": "x", "stream": True}),
    ("/v1/messages", "t3-smart", {"max_tokens": 5}),
    ("/v1/embeddings", "t4-embedding", {"input": "x", "dimensions": 2}),
    ("/v1/rerank", "t4-rerank", {"query": "x", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": True}),
    ("/rerank", "t4-rerank", {"query": "x", "documents": ["a"]}),
    ("/v1/images/generations", "t3-image", {"prompt": "x", "n": 1, "size": "64x64", "response_format": "b64_json"}),
    ("/images/generations", "t3-image", {"prompt": "x"}),
]
# path, alias, body, and where the request is when its client leaves: queued, at a worker (gate), or in the middle of its answer
DISCONNECTS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "chat, queued": ("/v1/chat/completions", "t3-smart", {}, "queued"),
    "chat stream, queued": ("/v1/chat/completions", "t3-smart", {"stream": True}, "queued"),
    "chat, before the answer": ("/v1/chat/completions", "t3-smart", {}, "gate"),
    "chat stream, before the first byte": ("/v1/chat/completions", "t3-smart", {"stream": True}, "gate"),
    "chat stream, in the middle": ("/v1/chat/completions", "t3-smart", {"stream": True}, "middle"),
    "completion, before the answer": ("/v1/completions", "t3-smart", {"prompt": "x"}, "gate"),
    "completion stream, in the middle": ("/v1/completions", "t3-smart", {"prompt": "x", "stream": True}, "middle"),
    "response, before the answer": ("/v1/responses", "t3-smart", {"input": "x"}, "gate"),
    "response stream, in the middle": ("/v1/responses", "t3-smart", {"input": "x", "stream": True}, "middle"),
    "embedding, before the answer": ("/v1/embeddings", "t4-embedding", {"input": "x"}, "gate"),
    "rerank, before the answer": ("/v1/rerank", "t4-rerank", {"query": "x", "documents": ["a"]}, "gate"),
    "image, before the answer": ("/v1/images/generations", "t3-image", {"prompt": "x"}, "gate"),
    "rerank, queued": ("/v1/rerank", "t4-rerank", {"query": "x", "documents": ["a"]}, "queued"),
    "image, queued": ("/v1/images/generations", "t3-image", {"prompt": "x"}, "queued"),
    "message, before the answer": ("/v1/messages", "t3-smart", {"max_tokens": 5}, "gate"),
    "message stream, in the middle": ("/v1/messages", "t3-smart", {"max_tokens": 5, "stream": True}, "middle"),
}


def rounds(count: int, seed: int) -> list[list[str]]:
    """Rounds of up to six requests that six cards can serve at once: at most two of them need one of the two big cards."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        big = chance.randint(0, 2)
        small = chance.randint(0 if big else 1, 6 - big)
        wanted = ["t3-plan"] * big + [chance.choice(SMALL_ALIASES) for _ in range(small)]
        chance.shuffle(wanted)
        found.append(wanted)
    return found
