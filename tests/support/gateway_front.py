"""nginx with the site that the role renders, in front of a gateway of the tests."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULE = Path("/usr/lib/nginx/modules/ngx_http_headers_more_filter_module.so")
MISSING = "needs nginx and libnginx-mod-http-headers-more-filter"


def is_installed() -> bool:
    return shutil.which("nginx") is not None and MODULE.exists()


def render_site(folder: Path, port: int, gateway_port: int) -> None:
    """Render the role's template with its own variables, as Ansible does; only addresses that a test cannot use are replaced."""
    defaults, role_variables = (str(ROOT / "roles" / "litellm" / part / "main.yml") for part in ("defaults", "vars"))
    ours = {
        "ansible_python_interpreter": sys.executable,
        "role_path": str(ROOT / "roles" / "litellm"),
        "litellm_port": port,
        "litellm_catalog_sha256": "a" * 64,
        "litellm_body_mib": 1,
        "litellm_config": {},
        "litellm_grants": {"keys": {}},
    }
    (folder / "ours.json").write_text(json.dumps(ours))
    template = {"src": str(ROOT / "roles/litellm/templates/gateway.conf.j2"), "dest": str(folder / "site.conf"), "mode": "0644"}
    play = [
        {
            "hosts": "localhost",
            "connection": "local",
            "gather_facts": False,
            "vars_files": [defaults, role_variables, str(folder / "ours.json")],
            "tasks": [{"ansible.builtin.template": template}],
        }
    ]
    (folder / "play.yml").write_text(json.dumps(play))
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", str(folder / "play.yml")]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    site = (folder / "site.conf").read_text().replace("127.0.0.1:4001", f"127.0.0.1:{gateway_port}").replace("/var/log/nginx", str(folder))
    (folder / "site.conf").write_text(site)
    (folder / "nginx.conf").write_text(
        f"load_module {MODULE};\nworker_processes 1;\ndaemon off;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log;\n"
        f"events {{ worker_connections 512; }}\nhttp {{\n"
        + "".join(f"  {kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        + f"  include {folder}/site.conf;\n}}\n"
    )


class Front:
    """One nginx; `url` is where it listens."""

    def __init__(self, folder: Path, gateway_port: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self._folder = folder
        render_site(folder, port, gateway_port)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            "nginx",
            "-p",
            str(self._folder),
            "-c",
            str(self._folder / "nginx.conf"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(10):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                except OSError:
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    return

    async def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            await self._process.wait()
