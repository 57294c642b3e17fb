"""Reads one mapping of variables: types, allowed values, unknown keys; every deviation becomes a fault and a usable default goes on."""

from __future__ import annotations

import re
from typing import Any, Callable, Collection, Dict, List, Optional, Pattern, Tuple

from ._catalog_faults import HIDDEN, MISSING, Faults, shown

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
NAME_WORDS = "must be 1 to 64 letters, digits, '.', '_' or '-', beginning and ending with a letter or digit"
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,62}")
LABEL_WORDS = "must be 1 to 63 letters, digits, '.', '_', '=' or '-'"


def plain(value: Any) -> Any:
    """The same data in Python's own types: Ansible hands over subclasses and lazy containers. Raises what an undefined value raises."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value)  # dates; an undefined value says here what it is missing


class Reader:
    """One mapping at `path`. `bad` tells whether anything in it was faulty, so that later checks can leave it alone."""

    def __init__(self, faults: Faults, path: str, data: Any, known: Collection[str]) -> None:
        self.faults, self.path, self.bad = faults, path, False
        self.data: Dict[Any, Any] = {}
        if not isinstance(data, dict):
            self._fault(path, MISSING if data is None else shown(data), "must be a mapping with the keys " + ", ".join(known))
            return
        self.data = data
        for key in data:
            if key not in known:
                self._fault(self.at(str(key)), "unknown key", "must be one of " + ", ".join(known))

    def at(self, key: str) -> str:
        """The path of a key of this mapping."""
        return f"{self.path}.{key}" if self.path else key

    def _fault(self, path: str, found: str, allowed: str) -> None:
        self.bad = True
        self.faults.add(path, found, allowed)

    def fault(self, key: str, allowed: str, hide: bool = False) -> None:
        """Report the value of `key` as it stands."""
        value = self.data.get(key)
        self._fault(self.at(key), MISSING if value is None else HIDDEN if hide else shown(value), allowed)

    def text(self, key: str, pattern: Optional[Pattern[str]], words: str, required: bool = True, hide: bool = False) -> Optional[str]:
        """A string that matches `pattern` whole; None when absent or faulty."""
        value = self.data.get(key)
        if value is None and not required:
            return None
        if isinstance(value, str) and value and (pattern is None or pattern.fullmatch(value)):
            return value
        self.fault(key, words, hide)
        return None

    def choice(self, key: str, options: Collection[str], default: Optional[str] = None) -> str:
        """One of `options`; the default, or the first option, when absent or faulty."""
        value = self.data.get(key, default)
        if isinstance(value, str) and value in options:
            return value
        self.fault(key, "must be one of " + ", ".join(options))
        return default or next(iter(options))

    def number(self, key: str, default: Optional[int] = None, required: bool = False) -> Optional[int]:
        """A whole number ≥ 1, or the default."""
        value = self.data.get(key)
        if value is None and not required:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        self.fault(key, "must be a whole number of at least 1")
        return default

    def flag(self, key: str) -> bool:
        """true or false; false when absent."""
        value = self.data.get(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        self.fault(key, "must be true or false")
        return False

    def texts(self, key: str, good: Callable[[str], Any] = bool, words: str = "must be a string") -> List[str]:
        """A list of distinct strings that `good` accepts, [] when absent; faulty entries are left out."""
        value = self.data.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.fault(key, "must be a list")
            return []
        accepted: List[str] = []
        for index, item in enumerate(value):
            where = f"{self.at(key)}[{index}]"
            if not isinstance(item, str) or not good(item):
                self._fault(where, MISSING if item is None else shown(item), words)
            elif item in accepted:
                self._fault(where, shown(item), "must not be listed twice")
            else:
                accepted.append(item)
        return accepted

    def arguments(self, key: str) -> List[str]:
        """A list of strings in which order and repetition count (a command line), [] when absent."""
        value = self.data.get(key)
        if value is None:
            return []
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return list(value)
        self.fault(key, "must be a list of strings (quote numbers)")
        return []

    def choices(self, key: str, options: Collection[str], default: Collection[str] = ()) -> List[str]:
        """A list of distinct values out of `options`, or the default when absent."""
        if self.data.get(key) is None:
            return list(default)
        return self.texts(key, options.__contains__, "must be one of " + ", ".join(options))

    def entries(self, key: str) -> Dict[Any, Any]:
        """A mapping, {} when absent."""
        value = self.data.get(key)
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        self.fault(key, "must be a mapping")
        return {}


def named(faults: Faults, variable: str, data: Any, words: str) -> Tuple[Dict[str, Any], bool]:
    """A variable that maps names to settings: the well-named entries, and whether the variable itself was a mapping."""
    if data is None:
        return {}, True
    if not isinstance(data, dict):
        faults.add(variable, shown(data), "must be a mapping of " + words)
        return {}, False
    good = {}
    for name, value in data.items():
        if isinstance(name, str) and NAME.fullmatch(name):
            good[name] = value
        else:
            faults.add(f"{variable}.{name}", shown(name), NAME_WORDS)
    return good, True
