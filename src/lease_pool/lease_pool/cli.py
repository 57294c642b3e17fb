"""The command `lease-pool` (DESIGN.md 4.1). Exit status: 0 done, 1 failed, 2 bad usage or configuration.

The helpers of units are dispatched before anything heavy is imported: a worker's start waits for `exec-worker`.
"""

from __future__ import annotations

import sys

DEFAULT_CONFIG = "/etc/gpu-fleet/pool.yml"
HELPERS = ("exec-worker", "prepare-cards", "start-idle", "wait-free", "clear-workers")
WITH_SLOT = ("exec-worker", "wait-free")


def main(arguments: list[str] | None = None) -> int:
    argv = sys.argv[1:] if arguments is None else arguments
    if argv and argv[0] in HELPERS:
        return _helper(argv[0], argv[1:])
    from lease_pool import commands  # noqa: PLC0415  argparse and all that follows

    return commands.main(argv)


def _helper(verb: str, argv: list[str]) -> int:
    """`VERB [SLOT] [--config F]`, parsed by hand: argparse alone would cost a worker's start several milliseconds."""
    config = DEFAULT_CONFIG
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--config":
            config = next(words, "")
        elif word.startswith("--config="):
            config = word.removeprefix("--config=")
        else:
            rest.append(word)
    wanted = 1 if verb in WITH_SLOT else 0
    if len(rest) != wanted or not config or any(word.startswith("-") for word in rest):
        print(f"usage: lease-pool {verb}{' SLOT' if wanted else ''} [--config F]", file=sys.stderr)
        return 2
    if verb == "exec-worker":
        from lease_pool import exec_worker  # noqa: PLC0415

        return exec_worker.main(rest[0], config)
    if verb == "wait-free":
        from lease_pool import wait_free  # noqa: PLC0415

        return wait_free.main(config, rest[0])
    if verb == "prepare-cards":
        from lease_pool import prepare_cards  # noqa: PLC0415

        return prepare_cards.main(config)
    if verb == "start-idle":
        from lease_pool import start_idle  # noqa: PLC0415

        return start_idle.main(config)
    from lease_pool import clear_workers  # noqa: PLC0415

    return clear_workers.main(config)


if __name__ == "__main__":
    sys.exit(main())
