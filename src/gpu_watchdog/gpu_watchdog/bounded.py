"""Child processes with a hard bound: the only way this package runs a command, asks the driver or resolves a name.

Output goes to anonymous memory files, not pipes: a grandchild that keeps a pipe open, or a child that SIGKILL cannot end because it
blocks in the driver, can then hold nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

_OUTPUT_BYTES = 16 * 1024 * 1024
_KILL_WAIT_S = 1.0


@dataclass(frozen=True)
class Ended:
    """How a child ended. `code` is None when it was killed at its bound; `left` is then the process if even SIGKILL did not end it."""

    code: int | None
    out: str = ""
    err: str = ""
    left: subprocess.Popen[bytes] | None = field(default=None, compare=False)

    @property
    def ok(self) -> bool:
        return self.code == 0

    def why(self) -> str:
        """One line that says how it failed; never its standard output."""
        if self.code is None:
            return "killed at its bound" + (f", process {self.left.pid} does not die" if self.left else "")
        last = self.err.strip().splitlines()[-1:] or ["no message"]
        return f"exit status {self.code}: {last[0][:300]}"


def run(argv: Sequence[str], bound_s: float, *, stdin: str = "", keep_fds: Sequence[int] = ()) -> Ended:
    """Run `argv` for at most `bound_s` seconds, then kill its whole process group. Never raises for what the child does."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(os.fdopen(os.memfd_create(name), "w+b")) for name in ("stdin", "stdout", "stderr")]
        given, out, err = files
        given.write(stdin.encode())
        given.seek(0)
        try:
            child = subprocess.Popen(
                list(argv), stdin=given, stdout=out, stderr=err, start_new_session=True, pass_fds=tuple(keep_fds), close_fds=True
            )
        except OSError as error:
            return Ended(127, err=str(error))
        code: int | None = None
        left: subprocess.Popen[bytes] | None = None
        try:
            code = child.wait(bound_s)
        except subprocess.TimeoutExpired:
            left = _kill(child)
        except BaseException:
            _kill(child)
            raise
        return Ended(code, _text(out.fileno()), _text(err.fileno()), left)


def _kill(child: subprocess.Popen[bytes]) -> subprocess.Popen[bytes] | None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(_KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        return child
    return None


def _text(descriptor: int) -> str:
    return os.pread(descriptor, _OUTPUT_BYTES, 0).decode(errors="replace")
