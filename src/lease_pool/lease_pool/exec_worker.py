"""`lease-pool exec-worker SLOT`: turns into the model server of a slot. Started by gpu-worker@<slot>.service, already holding the lock.

Takes its launch spec (no spec: the start was cancelled, exit 0), waits until the card is free, says so to PID 1 (the unit is
`Type=notify`: its start job ends exactly when the card is free) and execs the server. Imports the standard library only: this is the
cold path of every request. Needs no configuration: the unit's environment names the folders, the spec holds everything else.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

from lease_pool import launch

# What a server may inherit. All else (CUDA_*, NVIDIA_*, LLAMA_*, and what systemd and we set) stays out.
_INHERITED = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"})


def main(slot: str, config_path: str) -> int:
    """Exit status when it does not become the server: 0 cancelled, 76 the card did not become free, 78 a bad spec, 1 NVML or exec failed."""
    del config_path  # the worker's account may not read it, and YAML is not in the standard library
    runtime_dir = os.environ.get("GPU_FLEET_RUNTIME_DIR", "/run/gpu-fleet")
    try:
        spec = launch.consume(runtime_dir, slot)
    except ValueError as error:
        return _fail(launch.BAD_SPEC, f"slot {slot}: launch spec {error}")
    if spec is None:
        # PID 1 calls a Type=notify service that ends without this a failed one.
        print(f"slot {slot}: the start was cancelled", flush=True)
        _notify("READY=1\nSTATUS=the start was cancelled")
        return 0
    reason = _wait_free(spec)
    if reason:
        return _fail(launch.NOT_FREE, f"slot {slot}, card {spec.uuid}: not free after {spec.free_s:g} s: {reason}")
    own_folder = os.environ.get("RUNTIME_DIRECTORY")
    worker_socket = f"{own_folder}/worker.sock" if own_folder else launch.socket_path(slot)
    values = {
        "{socket}": worker_socket,
        "{host}": launch.RELAY_HOST,
        "{port}": str(launch.RELAY_PORT),
        "{api_key_file}": f"{os.environ.get('CREDENTIALS_DIRECTORY', '/nonexistent')}/{launch.API_KEY_CREDENTIAL}",
    }
    argv = [_filled(argument, values) for argument in spec.argv]
    environment = _environment(spec, values)
    if spec.needs_port:
        _start_relay(worker_socket)
    _notify("READY=1\nSTATUS=model server")
    try:
        os.execvpe(argv[0], argv, environment)  # noqa: S606  an argv from the pool, no shell
    except OSError as error:
        return _fail(1, f"slot {slot}: cannot run {argv[0]}: {error.strerror}")


def _wait_free(spec: launch.Launch) -> str:
    if spec.check == "none":
        return ""
    from lease_pool import card_memory  # noqa: PLC0415  ctypes costs 5 ms that declared cards need not pay

    # The last to leave may still be going: what NVML answers in that moment may be an error, and is asked again within the bound.
    deadline = time.monotonic() + spec.free_s
    while True:
        try:
            return card_memory.wait_free(spec.uuid, spec.memory_mib, deadline - time.monotonic(), lambda why: _notify(f"STATUS={why}"))
        except card_memory.NvmlError as error:
            if time.monotonic() >= deadline:
                return str(error)
            _notify(f"STATUS={error}")
            time.sleep(0.1)


def _filled(text: str, values: dict[str, str]) -> str:
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text


def _environment(spec: launch.Launch, values: dict[str, str]) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k in _INHERITED or k.startswith("LC_")}
    own = {k: _filled(v, values) for k, v in spec.env.items()}
    return {**inherited, **own, "CUDA_VISIBLE_DEVICES": spec.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _start_relay(worker_socket: str) -> None:
    """A child that passes the socket's connections on to the server's loopback port; it dies with the unit's control group."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(worker_socket)
    os.chmod(worker_socket, 0o660)
    listener.listen(128)
    parent = os.getpid()
    if os.fork():
        listener.close()
        return
    # The lock's descriptor must not live on in the relay: the card is free when the server is gone, whatever the relay does.
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != listener.fileno():
            try:
                os.close(int(name))
            except OSError:
                continue  # the descriptor of the listing itself
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from lease_pool import relay  # noqa: PLC0415  asyncio, only where a relay is needed

    try:
        relay.run(listener, launch.RELAY_HOST, launch.RELAY_PORT, parent)
    finally:
        os._exit(0)


def _notify(message: str) -> None:
    """Tell PID 1 (sd_notify(3)); nothing where there is no PID 1 that asked."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
        notifier.connect("\0" + address[1:] if address.startswith("@") else address)
        notifier.sendall(message.encode())


def _fail(status: int, message: str) -> int:
    print(message, file=sys.stderr, flush=True)
    # The pool reads the reason from the unit's StatusText, without access to the journal.
    _notify(f"STATUS={message}")
    return status
