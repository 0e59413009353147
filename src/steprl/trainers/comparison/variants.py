"""What is compared: a variant is a name and the options in which it differs from the recipe.

Variants are written in one word, ``gae:credit=step,lam=0.95``, or in a TOML file, a table for each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steprl.config import Table, flattened, override, put, read_toml
from steprl.errors import ConfigError
from steprl.trainers.recipe import AlgorithmConfig, ContextConfig

_COMPONENTS = {"algorithm": "estimator", "context": "id", "env": "id", "engine": "id"}
"""Tables of a recipe that name a component, and the option in which they do; ``args`` go with it."""

_DEFAULTS = {"algorithm": AlgorithmConfig().estimator, "context": ContextConfig().id}
"""What a recipe names where it names nothing."""

_GIVEN = ("name", "runs", "seed")
"""Options that the comparison itself gives to every run."""

_WORD = re.compile(r"(?P<name>[^=]+?)(?::(?P<options>[A-Za-z_][\w.]*=.*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One of the things that are compared: ``overrides`` are dotted options and their values.

    Raises:
        ConfigError: the name does not make a folder name.
    """

    name: str
    overrides: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not re.fullmatch(r"(?!\.)[A-Za-z0-9._-]{1,100}", self.name):
            raise ConfigError(
                f"a variant's name becomes that of a folder: 1 to 100 of A-Z, a-z, 0-9, '.', '_' and '-', "
                f"not beginning with '.'; got {self.name!r}"
            )
        for option in _GIVEN:
            if option in self.overrides:
                raise ConfigError(
                    f"variant '{self.name}' sets {option}, which the comparison gives to every run: seeds "
                    f"are those of --seeds, names and places follow from the variant. Remove it."
                )

    def apply(self, table: Table) -> Table:
        """A copy of a recipe's table with the overrides.

        Where they name another component than the recipe does (an estimator, a context rule), the recipe's
        ``args`` of the old one go: they are not for the new one.
        """
        result = deepcopy(table)
        for kind, option in _COMPONENTS.items():
            of_kind = result.get(kind, {})
            named = self.overrides.get(f"{kind}.{option}")
            before = of_kind.get(option, _DEFAULTS.get(kind))
            if named is not None and named != before and "args" in of_kind:
                of_kind["args"] = {}
        for path, value in self.overrides.items():
            put(result, path, deepcopy(value))
        return result


def parse_word(text: str) -> tuple[str, Table]:
    """``gae:credit=step,lam=0.95`` as a name and its options; the name may be ``module:attribute``.

    Raises:
        ConfigError: it cannot be read like that.
    """
    found = _WORD.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"'{text}' names nothing. Write a name, or a name with options, as in gae:credit=step,lam=0.95. "
            f"Options of the recipe come before."
        )
    options = found["options"]
    return found["name"], override({}, options.split(",") if options else [])


def algorithm_variants(words: Sequence[str]) -> list[Variant]:
    """The variants that ``--algorithms`` asks for: estimators with options, and TOML files of variants.

    ``gae:credit=step`` sets an option of the estimator; an option with a dot, as in
    ``grpo:algorithm.epochs=2``, is one of the recipe.

    Raises:
        ConfigError: a word or a file cannot be read, or two variants have one name.
    """
    return _variants(words, "algorithm")


def context_variants(words: Sequence[str]) -> list[Variant]:
    """The same for ``--rules``: context rules with options, as in ``sliding_window:rounds=2``."""
    return _variants(words, "context")


def _variants(words: Sequence[str], kind: str) -> list[Variant]:
    found: list[Variant] = []
    for word in words:
        found += read_variants(word) if word.endswith(".toml") else [_variant(word, kind)]
    _refuse_repeated([variant.name for variant in found])
    return found


def read_variants(path: str | Path) -> list[Variant]:
    """The tables ``[variants.<name>]`` of a TOML file, in its order: dotted options and their values.

    Raises:
        ConfigError: there is no such file, or it holds something else.
    """
    if not Path(path).is_file():
        raise ConfigError(f"there is no file of variants '{path}'")
    table = read_toml(path)
    variants = table.get("variants")
    if set(table) != {"variants"} or not isinstance(variants, dict) or not variants:
        raise ConfigError(
            f"'{path}' holds no variants, or something beside them: write a table [variants.<name>] for "
            f"each, and in it the options of the recipe that it sets"
        )
    for name, options in variants.items():
        if not isinstance(options, dict) or not options:
            raise ConfigError(f"{path}: variants.{name} must be a table of options, got {options!r}")
    return [Variant(name=name, overrides=flattened(options)) for name, options in variants.items()]


def _variant(word: str, kind: str) -> Variant:
    name, options = parse_word(word)
    overrides = {f"{kind}.{_COMPONENTS[kind]}": name}
    for key, value in flattened(options).items():
        overrides[key if "." in key else f"{kind}.args.{key}"] = value
    return Variant(name=re.sub(r"[^A-Za-z0-9._-]+", "-", word), overrides=overrides)


def _refuse_repeated(names: Sequence[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(
            f"two variants are called '{repeated[0]}'; give each a name of its own, in a TOML file if need be"
        )
