"""TOML and ``key=value`` in, a typed and checked dataclass out; and back to TOML.

Every option is a field of a dataclass that lives beside the class it configures. Keys that no field
answers to are refused with the closest name.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import tomli_w
from pydantic import TypeAdapter, ValidationError

from steprl.errors import ConfigError, unknown

Config = TypeVar("Config")
Table = dict[str, Any]


def read_toml(path: str | Path) -> Table:
    """The table in a TOML file.

    Raises:
        ConfigError: no such file, or not TOML (with line and column).
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"there is no recipe '{path}'. Recipes are TOML files; see the folder recipes/.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def override(table: Table, assignments: Sequence[str]) -> Table:
    """A copy of ``table`` with ``a.b=value`` assignments applied. Values are TOML; bare words are strings.

    Raises:
        ConfigError: an assignment without ``=``, or a path through something that is no table.
    """
    result: Table = deepcopy(table)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not all(path.strip().split(".")):
            raise ConfigError(
                f"'{assignment}' is not an override. Write key=value, for example learner.lr=1e-4."
            )
        put(result, path.strip(), _toml_value(text.strip()))
    return result


def put(table: Table, path: str, value: Any) -> None:
    """Set the option ``a.b`` in ``table``, making tables on the way.

    Raises:
        ConfigError: the path leads through something that is no table.
    """
    *parents, last = path.split(".")
    inner = table
    for depth, key in enumerate(parents, start=1):
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"'{path}': '{'.'.join(parents[:depth])}' is a value, not a table of options")
    inner[last] = value


def flattened(table: Mapping[str, Any], prefix: str = "") -> Table:
    """Nested options by dotted key. An empty table is a value of its own."""
    found: Table = {}
    for key, value in table.items():
        inner = isinstance(value, Mapping) and value
        found |= flattened(value, f"{prefix}{key}.") if inner else {prefix + key: value}
    return found


def differing(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How two flattened tables differ, a phrase for each option that does; an empty table is none."""
    return [
        f"{key} was {then.get(key)!r} and is {now.get(key)!r}"
        for key in sorted({*then, *now})
        if then.get(key) != now.get(key) and {} not in (then.get(key), now.get(key))
    ]


def build(cls: type[Config], table: Mapping[str, Any]) -> Config:
    """``cls`` from a table, every value checked against its type.

    Raises:
        ConfigError: an unknown key, a missing one, a value of the wrong type or out of its range.
    """
    _refuse_unknown(cls, table, ())
    try:
        text = json.dumps(table)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the recipe does not fit: {error}. Options are text, numbers, true and false, lists and tables."
        ) from None
    try:
        # Through JSON, strictly: arrays become tuples, whole numbers become floats, nothing else is bent.
        return TypeAdapter(cls).validate_json(text, strict=True)
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            where = ".".join(str(part) for part in problem["loc"])
            given = "" if problem["type"] == "missing" else f", got {problem['input']!r}"
            problems.append(f"{where}: {problem['msg']}{given}")
        raise ConfigError("the recipe does not fit: " + "; ".join(problems)) from None


def to_toml(config: object) -> str:
    """A dataclass as TOML. Fields that are None are left out: they are the default."""
    assert dataclasses.is_dataclass(config) and not isinstance(config, type)
    return tomli_w.dumps(_without_none(json.loads(json.dumps(dataclasses.asdict(config)))))


def options(cls: type[Any], prefix: str = "") -> dict[str, str]:
    """Every option of a config class as ``a.b -> type``: the list that a test keeps frozen."""
    hints = get_type_hints(cls)
    found: dict[str, str] = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            found |= options(hint, f"{prefix}{field.name}.")  # type: ignore[arg-type]
        else:
            found[prefix + field.name] = (
                getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)
            )
    return found


def _refuse_unknown(cls: type[Any], table: Mapping[str, Any], path: tuple[str, ...]) -> None:
    hints = get_type_hints(cls)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    for key, value in table.items():
        where = ".".join((*path, key))
        if key not in fields:
            allowed = [".".join((*path, name)) for name in fields]
            raise ConfigError(unknown("option", where, allowed))
        if dataclasses.is_dataclass(fields[key]):
            if not isinstance(value, Mapping):
                raise ConfigError(f"'{where}' is a table of options, got {value!r}. Set {where}.<option>.")
            _refuse_unknown(fields[key], value, (*path, key))


def _toml_value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    # No option is a date, but 2025-06-01 makes a good name of a run.
    return text if isinstance(value, (date, datetime, time)) else value


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return value
