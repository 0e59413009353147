"""Components by name. Built-in ones and those of other packages are entry points of the same groups;
anything importable can also be named as ``module:attribute``. Nothing is imported before it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from steprl.errors import ConfigError, unknown

Kind = Literal[
    "env", "tool", "reward", "context", "writer", "format", "engine", "estimator", "filter", "curriculum"
]

_GROUPS: dict[Kind, str] = {
    "env": "steprl.envs",
    "tool": "steprl.tools",
    "reward": "steprl.rewards",
    "context": "steprl.context",
    "writer": "steprl.writers",
    "format": "steprl.formats",
    "engine": "steprl.engines",
    "estimator": "steprl.estimators",
    "filter": "steprl.filters",
    "curriculum": "steprl.curricula",
}


@cache
def _installed(kind: Kind) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=_GROUPS[kind]):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise ConfigError(
                f"two packages register the {kind} '{entry.name}': {other.value} and {entry.value}. "
                f"Name the one you mean as module:attribute, and uninstall or rename the other."
            )
    return found


def addresses(kind: Kind) -> dict[str, str]:
    """Every known name of a kind and the ``module:attribute`` behind it, sorted by name."""
    return {name: entry.value for name, entry in sorted(_installed(kind).items())}


def resolve(kind: Kind, name: str) -> Any:
    """The component called ``name``: a registered id, or ``module:attribute``.

    Raises:
        ConfigError: no such id, module or attribute.
    """
    known = _installed(kind)
    if ":" not in name:
        if name not in known:
            raise ConfigError(unknown(kind, name, known, hint="Or name your own as module:attribute."))
        address = known[name].value
    else:
        address = name
    return load(f"{kind} '{name}'", address)


def make(kind: Kind, name: str, args: Mapping[str, Any]) -> Any:
    """A component by name, with its options.

    Raises:
        ConfigError: there is none of this name, or it does not take the options.
    """
    return call(kind, name, resolve(kind, name), args)


def call(kind: Kind, name: str, component: Callable[..., Any], args: Mapping[str, Any]) -> Any:
    """The same for a component that is at hand; ``name`` is what messages call it."""
    try:
        return component(**args)
    except TypeError as error:
        raise ConfigError(f"{kind} '{name}' does not take these options: {error}") from error


def load(label: str, address: str) -> Any:
    """The object at ``module:attribute``; ``label`` is what messages call it.

    Raises:
        ConfigError: no such module or attribute.
    """
    module, _, attribute = address.partition(":")
    if not module or not attribute or module.startswith("."):
        raise ConfigError(f"{label}: write module:attribute, for example my_package.my_module:MyClass")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            raise ConfigError(
                f"{label}: there is no module '{module}'. "
                f"Run from the folder that holds it, or install the package it belongs to."
            ) from None
        raise ConfigError(
            f"{label} needs the package '{error.name}', which is not installed. "
            f"Try: pip install 'steprl[train]'"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [entry for entry in dir(found) if not entry.startswith("_")]
            raise ConfigError(f"{label}: " + unknown(f"attribute of {module}", part, public))
        found = getattr(found, part)
    return found
