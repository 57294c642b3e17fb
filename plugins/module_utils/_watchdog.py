# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""The watchdog's command on a host (DESIGN.md 4.5) as functions. Nothing here knows Ansible."""

from __future__ import annotations

import json
import typing as t

Json = t.Dict[str, t.Any]
Run = t.Callable[[t.List[str]], t.Tuple[int, str, str]]


class WatchdogError(Exception):
    """The command could not be run, or failed; the message has what was tried and what came back."""


class WatchdogCommand:
    """`run` takes an argument list and returns exit status, standard output and standard error."""

    def __init__(self, run: Run, command: str, config: str) -> None:
        self._run = run
        self._command = command
        self._config = config

    def status(self) -> Json:
        """`gpu-watchdog status --json`: reads files only, asks no driver."""
        return self._json(["status", "--json"])

    def ack(self, reason: str) -> Json:
        """`gpu-watchdog ack --json`: `changed`, and the phase before and after."""
        return self._json(["ack", "--json", "--reason", reason])

    def _json(self, words: t.List[str]) -> Json:
        argv = [self._command, *words, "--config", self._config]
        try:
            code, out, err = self._run(argv)
        except OSError as error:
            raise WatchdogError(f"{argv[0]}: {error}; is the role gpu_watchdog applied?") from None
        if code != 0:
            said = err.strip() or out.strip() or "no message"
            raise WatchdogError(f"{argv[0]} {words[0]}: expected exit status 0, got {code}: {said}")
        try:
            answer = json.loads(out)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or "phase" not in answer:
            raise WatchdogError(f"{argv[0]} {words[0]}: expected a JSON object with the phase, got {out[:200]!r}")
        return answer
