"""How this machine reaches package registries, in the form the hosts need it. Nothing of it is kept in the repository."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

PIP_KEYS = {"index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries"}
APT_KEYS = re.compile(r"^Acquire::(https?::proxy|check-valid-until|check-date|retries|https?::timeout)", re.IGNORECASE)
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def ca_bundle() -> str:
    for path in (os.environ.get("SSL_CERT_FILE"), "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"):
        if path and Path(path).is_file():
            return Path(path).read_text()
    raise SystemExit("no CA bundle on this machine: install ca-certificates")


def pip_conf(cache_dir: str) -> str:
    """This machine's pip settings, less those that are paths of this machine."""
    listing = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False).stdout
    settings = {"cert": "/etc/ssl/certs/ca-certificates.crt", "cache-dir": cache_dir, "disable-pip-version-check": "true"}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        text = str(ast.literal_eval(value)) if value else ""
        remote = " ".join(word for word in text.split() if not word.startswith(("file:", "/")))
        if key in PIP_KEYS and remote:
            settings[key] = remote
    return "\n".join(["[global]", *(f"{key} = {value}" for key, value in settings.items())]) + "\n"


def apt_conf() -> str:
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False).stdout if _has_apt() else ""
    return "".join(f"{line}\n" for line in dump.splitlines() if APT_KEYS.match(line))


def apt_sources(suite: str) -> str:
    """A deb822 sources file for a Debian suite, from the mirrors this machine uses for Debian itself."""
    main, security = _mirrors()
    stanza = "Types: deb\nURIs: {}\nSuites: {}\nComponents: main\nSigned-By: " + KEYRING + "\n"
    return "\n".join([stanza.format(main, f"{suite} {suite}-updates"), stanza.format(security, f"{suite}-security")])


def _has_apt() -> bool:
    return Path("/usr/bin/apt-config").exists()


def _mirrors() -> tuple[str, str]:
    text = "\n".join(
        file.read_text()
        for file in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
        if file.is_file() and file.suffix in {".list", ".sources"}
    )
    found = re.findall(r"^(?:URIs:|deb\b(?:\s+\[[^]]*\])?)\s*(https?://\S*?/(debian(?:-security)?))/?(?=\s|$)", text, re.MULTILINE)
    by_kind = {kind: uri for uri, kind in reversed(found)}
    main = os.environ.get("DEBIAN_MIRROR") or by_kind.get("debian")
    if not main:
        raise SystemExit("this machine's apt sources name no Debian mirror: set DEBIAN_MIRROR=http://…/debian")
    return main, by_kind.get("debian-security", f"{main}-security")
