"""Bearer tokens of the data plane: the lines of `token_file`, all valid at once (two while rotating); an empty one never matches."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from lease_pool.config import ConfigError


class Tokens:
    """The tokens that are valid now. Only their digests are kept, so that no dump or repr of this object shows one."""

    def __init__(self, path: Path) -> None:
        self._digests: tuple[bytes, ...] = ()
        self.reload(path)

    def reload(self, path: Path) -> None:
        """Read the file again. Raises ConfigError, and keeps the old tokens, if it cannot be read."""
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise ConfigError([f"{path}: cannot be read: {error.strerror or error}"]) from None
        self._digests = tuple(_digest(line.strip()) for line in lines if line.strip())

    def __len__(self) -> int:
        return len(self._digests)

    def match(self, authorization: str | None) -> bool:
        """Whether an `Authorization` header carries a valid token. Compares digests with every token, so that time tells nothing."""
        if authorization is None:
            return False
        scheme, _, token = authorization.partition(" ")
        presented = token.strip().encode("utf-8", "surrogateescape")
        if not presented or scheme.lower() != "bearer":
            return False
        digest = _digest(presented)
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        return found


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
