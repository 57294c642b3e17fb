"""What a role promises in meta/argument_specs.yml is what it does by defaults/main.yml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
ROLES = sorted(folder for folder in (ROOT / "roles").iterdir() if folder.is_dir())


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def options(role: Path) -> dict[str, Any]:
    found: dict[str, Any] = load(role / "meta" / "argument_specs.yml")["argument_specs"]["main"].get("options", {})
    return found


def defaults(role: Path) -> dict[str, Any]:
    file = role / "defaults" / "main.yml"
    found: dict[str, Any] = (load(file) or {}) if file.exists() else {}
    return found


@pytest.fixture(params=ROLES, ids=lambda role: role.name)
def role(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_every_default_is_documented_and_every_documented_default_is_one(role) -> None:
    documented = {name: option["default"] for name, option in options(role).items() if "default" in option}
    assert documented == defaults(role)


def test_an_option_is_required_or_has_a_default(role) -> None:
    undecided = [name for name, option in options(role).items() if not option.get("required") and "default" not in option]
    assert undecided == []


def test_every_name_begins_with_the_roles(role) -> None:
    foreign = [name for name in options(role) if not name.startswith(f"{role.name}_")]
    assert foreign == []


def test_every_option_says_what_it_is_and_of_which_type(role) -> None:
    bare = [name for name, option in options(role).items() if not option.get("description") or not option.get("type")]
    assert bare == []


def test_lists_name_the_type_of_their_elements(role) -> None:
    bare = [name for name, option in options(role).items() if option["type"] == "list" and "elements" not in option]
    assert bare == []


def test_variables_that_look_secret_are_kept_out_of_logs(role) -> None:
    """A role with a secret has the switch that hides the tasks which handle it, on by default."""
    secret = [name for name in options(role) if name.endswith(("_token", "_key", "_password", "_secret", "_secrets", "_wallet"))]
    if secret:
        assert defaults(role)[f"{role.name}_secure_logging"] is True


def test_a_role_has_a_readme_and_metadata(role) -> None:
    assert (role / "README.md").is_file()
    assert load(role / "meta" / "main.yml")["galaxy_info"]["license"] == "Apache-2.0"


def test_a_role_begins_by_refusing_unsupported_hosts_and_unknown_variables(role) -> None:
    if role.name in ("_service", "aperture"):  # what the others include; and one file, written on any controller
        return
    tasks = load(role / "tasks" / "preflight.yml")
    checks = [task for task in tasks if task.get("ansible.builtin.include_role", {}).get("tasks_from") == "preflight"]
    assert [check["vars"]["_service_role"] for check in checks] == [role.name]
    first = load(role / "tasks" / "main.yml")[0]
    assert first["ansible.builtin.import_tasks"] == "preflight.yml"
