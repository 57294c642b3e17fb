"""Build the collection, install the tarball, render every plugin's documentation from it, and run one playbook from it.

What users install is the tarball, not this tree: a file that galaxy.yml's build_ignore drops by mistake, or a plugin that works only
from the checkout, shows here and nowhere else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
INSTALLED = ROOT / "build" / "installed"
BIN = Path(sys.executable).parent

# Folder of plugins/ -> name of that type for ansible-doc.
TYPES = {"modules": "module", "filter": "filter", "lookup": "lookup", "callback": "callback", "inventory": "inventory", "test": "test"}
# Nothing of these belongs into what users install.
FOREIGN = (".git/", ".venv/", ".cache/", "build/", "dist/", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis")


def call(*argv: str, env: dict[str, str] | None = None) -> str:
    """Run a command of the virtual environment and return what it printed; exits with its output when it fails."""
    result = subprocess.run([str(BIN / argv[0]), *argv[1:]], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(argv)} exited {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def build(name: str) -> Path:
    """Build the tarball into dist/ and refuse one with files that are none of the collection's."""
    DIST.mkdir(exist_ok=True)
    call("ansible-galaxy", "collection", "build", "--force", "--output-path", str(DIST))
    tarball = DIST / f"{name}.tar.gz"
    with tarfile.open(tarball) as archive:
        names = archive.getnames()
    foreign = [found for found in names if any(part in f"{found}/" for part in FOREIGN)]
    if foreign:
        sys.exit(f"{tarball.name} carries {', '.join(foreign[:5])}: add it to build_ignore in galaxy.yml")
    print(f"built {tarball.relative_to(ROOT)}: {len(names)} files, {tarball.stat().st_size >> 10} KiB")
    return tarball


def environment() -> dict[str, str]:
    """An environment in which only the installed collection can be found."""
    INSTALLED.mkdir(parents=True)
    config = INSTALLED / "ansible.cfg"
    config.write_text(f"[defaults]\ncollections_path = {INSTALLED}\n", encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    return dict(kept, ANSIBLE_CONFIG=str(config), ANSIBLE_NOCOLOR="1")


def documented(collection: str, env: dict[str, str]) -> int:
    """Render the documentation of every plugin and role there is; exits naming the first one that cannot be rendered."""
    root = INSTALLED / "ansible_collections" / Path(*collection.split("."))
    count = 0
    for folder, kind in TYPES.items():
        names = sorted(file.stem for file in (root / "plugins" / folder).glob("*.py") if not file.name.startswith("_"))
        if not names:
            continue
        wanted = [f"{collection}.{name}" for name in names]
        shown = json.loads(call("ansible-doc", "--json", "--type", kind, *wanted, env=env))
        absent = [name for name in wanted if name not in shown or not shown[name].get("doc")]
        if absent:
            sys.exit(f"ansible-doc renders nothing for the {kind} {', '.join(absent)}")
        call("ansible-doc", "--type", kind, *wanted, env=env)
        count += len(names)
    roles = sorted(folder.name for folder in (root / "roles").iterdir() if folder.is_dir())
    shown = json.loads(call("ansible-doc", "--json", "--type", "role", *[f"{collection}.{name}" for name in roles], env=env))
    absent = [name for name in roles if not shown.get(f"{collection}.{name}", {}).get("entry_points")]
    if absent:
        sys.exit(f"ansible-doc renders nothing for the role {', '.join(absent)}")
    return count + len(roles)


def main() -> None:
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))
    tarball = build(f"{galaxy['namespace']}-{galaxy['name']}-{galaxy['version']}")
    shutil.rmtree(INSTALLED, ignore_errors=True)
    env = environment()
    where = ["--offline", "--no-deps", "--collections-path", str(INSTALLED)]
    call("ansible-galaxy", "collection", "install", "--force", *where, str(tarball), env=env)
    count = documented(f"{galaxy['namespace']}.{galaxy['name']}", env)
    print(f"documentation of {count} plugins and roles renders from the installed tarball")
    script = ROOT / "tests" / "support" / "mmproj.py"
    playbook = ROOT / "tests" / "tools" / "installed.yml"
    call("ansible-playbook", "--inventory", "localhost,", "--extra-vars", f"mmproj_script={script}", str(playbook), env=env)
    print("a playbook ran from the installed tarball")


if __name__ == "__main__":
    main()
