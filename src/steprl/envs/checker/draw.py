"""Random arguments for a tool, drawn from its JSON schema: mostly of the right type, seldom sensible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

_DEEPEST = 4
_UNLIMITED = 20
"""How far from zero a number without limits is drawn."""

Schema = Mapping[str, Any]


def draw_arguments(schema: Schema, rng: Random, words: Sequence[str]) -> dict[str, Any]:
    """Arguments that fit the object ``schema``. Text is one of ``words``; optional ones may be missing."""
    return _object(schema, rng, words, schema.get("$defs", {}), 0)


def _object(schema: Schema, rng: Random, words: Sequence[str], defined: Schema, depth: int) -> dict[str, Any]:
    required = schema.get("required", ())
    return {
        name: _value(property, rng, words, defined, depth + 1)
        for name, property in schema.get("properties", {}).items()
        if name in required or rng.random() < 0.5
    }


def _value(schema: Schema, rng: Random, words: Sequence[str], defined: Schema, depth: int) -> Any:
    if "$ref" in schema:
        return _value(defined[schema["$ref"].removeprefix("#/$defs/")], rng, words, defined, depth)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    for several in ("anyOf", "oneOf"):
        if several in schema:
            # beyond the greatest depth the last option, which is usually null, so that it ends
            options = schema[several][-1:] if depth > _DEEPEST else schema[several]
            return _value(rng.choice(options), rng, words, defined, depth)
    match schema.get("type"):
        case "integer":
            low, high = _limits(schema)
            return rng.randint(round(low), round(high))
        case "number":
            return round(rng.uniform(*_limits(schema)), 3)
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
        case "array":
            return _array(schema, rng, words, defined, depth)
        case "object":
            return _object(schema, rng, words, defined, depth)
        case _:
            return rng.choice(words)


def _array(schema: Schema, rng: Random, words: Sequence[str], defined: Schema, depth: int) -> list[Any]:
    items = schema.get("prefixItems")
    if items is None:
        least = schema.get("minItems", 0)
        length = least if depth > _DEEPEST else rng.randint(least, min(least + 3, schema.get("maxItems", 99)))
        items = [schema.get("items", {})] * length
    return [_value(item, rng, words, defined, depth + 1) for item in items]


def _limits(schema: Schema) -> tuple[float, float]:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
    high = schema.get("maximum", schema.get("exclusiveMaximum", low + _UNLIMITED + 1) - 1)
    return low, max(low, high)
