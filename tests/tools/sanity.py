"""Run `ansible-test sanity` on a copy of the working tree and print what each test took.

The copy is what ansible-test insists on: a real folder `ansible_collections/<namespace>/<name>` with a repository of its own, whose
files are the tracked and the new, not ignored ones. Python that never runs inside Ansible stays out: ruff and strict mypy hold it. Its virtual environments are kept in .cache/ansible-test, so that only the
first run builds them. A wrong file makes it exit with ansible-test's own status.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "sanity"
HOME = ROOT / ".cache" / "ansible-test"

# Left out of the copy, but for what ansible-test itself reads below tests/.
NOT_ANSIBLE = ("src/", "tests/", "extensions/", ".ci/")
READ_BY_ANSIBLE_TEST = ("tests/sanity/", "tests/config.yml")

# Tests that do not run, each with its reason.
SKIPPED = {
    "shellcheck": "needs the shellcheck program, which is not on every machine; the scripts here are few and short",
    "pslint": "there is no PowerShell here",
}

# ansible-test downloads this script from a host of its own; Python carries what it does.
BOOTSTRAP = """\
import ensurepip
import os
import subprocess
import sys

environment = dict(os.environ)
ensurepip.bootstrap()  # hides pip's settings from what runs after it
wanted = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.exit(subprocess.call([sys.executable, "-m", "pip", "install", *wanted], env=environment))
"""


def copy_tree(target: Path) -> None:
    """Copy every file git knows or would add to `target`, and make that a repository: ansible-test asks git for its files."""
    shutil.rmtree(target, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if name.startswith(NOT_ANSIBLE) and not name.startswith(READ_BY_ANSIBLE_TEST):
            continue
        source, copy = ROOT / name, target / name
        if source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)
    subprocess.run(["git", "init", "--quiet"], cwd=target, check=True)
    subprocess.run(["git", "add", "--all", "--force"], cwd=target, check=True)


def prepare_home() -> dict[str, str]:
    """The environment for ansible-test: a home folder of its own with the bootstrap script in its cache."""
    package = importlib.util.find_spec("ansible_test")
    if package is None or package.origin is None:
        sys.exit("ansible-test is not installed; run this through make")
    requirements = Path(package.origin).parent / "_internal" / "python_requirements.py"
    version = re.search(r"pip='([0-9.]+)'", requirements.read_text(encoding="utf-8"))
    if version is None:
        sys.exit("this ansible-test does not say which pip it bootstraps: tests/tools/sanity.py has to learn where it does")
    script = HOME / ".ansible" / "test" / "cache" / f"get_pip_{version[1].replace('.', '_')}.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(BOOTSTRAP, encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "PYTHON"))}
    write_pip_settings(HOME / ".config" / "pip" / "pip.conf")
    bin_folder = Path(sys.executable).parent
    return dict(env, HOME=str(HOME), PATH=f"{bin_folder}:{env.get('PATH', '')}", ANSIBLE_NOCOLOR="1")


def write_pip_settings(file: Path) -> None:
    """Write what this pip is told, by files and PIP_* variables, to one file: ansible-test hides both from the pip it runs."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True).stdout
    settings = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        settings[name.split(".")[-1]] = ast.literal_eval(value).replace("\n", "\n    ")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()), encoding="utf-8")


def run(target: Path, env: dict[str, str], tests: list[str]) -> int:
    """Run ansible-test, print its lines as they come, then a table of times; return its status."""
    argv = ["ansible-test", "sanity", "--color", "no", "--python", f"{sys.version_info.major}.{sys.version_info.minor}"]
    for name in tests:
        argv += ["--test", name]
    for name in [] if tests else SKIPPED:
        argv += ["--skip-test", name]
    began = last = time.monotonic()
    current = "start"
    seconds: dict[str, float] = {}
    with subprocess.Popen(argv, cwd=target, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            started = re.match(r'Running sanity test "([^"]+)"', line)
            if started:
                now = time.monotonic()
                seconds[current] = seconds.get(current, 0.0) + now - last
                current, last = started[1], now
    seconds[current] = seconds.get(current, 0.0) + time.monotonic() - last
    print(f"\nsanity: {time.monotonic() - began:.0f} s; the slowest:")
    for name, taken in sorted(seconds.items(), key=lambda item: -item[1])[:8]:
        print(f"  {taken:6.1f} s  {name}")
    for name, reason in SKIPPED.items():
        print(f"  not run: {name} ({reason})")
    return process.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description="Run ansible-test sanity on a copy of the working tree.")
    parser.add_argument("tests", nargs="*", help="only these tests")
    tests = parser.parse_args().tests
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))
    target = BUILD / "ansible_collections" / galaxy["namespace"] / galaxy["name"]
    copy_tree(target)
    return run(target, prepare_home(), tests)


if __name__ == "__main__":
    sys.exit(main())
