"""Argument values that are written bare, as text: a tool's schema tells text from numbers and objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steprl.renderers._json import Decoded, decode
from steprl.renderers._reading import after_blanks
from steprl.renderers._writing import as_json

Schema = Mapping[str, Any]

_NAMES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


def read_value(written: str, schema: Schema | None, definitions: Schema) -> Any:
    """The value of a parameter: JSON of a type that its schema allows, and otherwise the text as it stands.

    Text is never put in quotes, so JSON text is text. Without a schema every type is allowed.

    Args:
        definitions: what a ``$ref`` of the schema points into.
    """
    allowed = None if schema is None else types_of(schema, definitions)
    if allowed == frozenset({"string"}):
        return written
    found = decode(written, after_blanks(written, 0))
    if not isinstance(found, Decoded) or found.fault or after_blanks(written, found.end) < len(written):
        return written
    name = _NAMES[type(found.value)]
    if name == "string":
        return written
    fits = allowed is None or name in allowed or (name == "integer" and "number" in allowed)
    return found.value if fits else written


def write_value(value: Any) -> str:
    """Text as it is, anything else as JSON."""
    return value if isinstance(value, str) else as_json(value)


def types_of(schema: Schema, definitions: Schema) -> frozenset[str] | None:
    """The names of the JSON types that a schema allows; None when it allows any."""
    if "$ref" in schema:
        return types_of(definitions[str(schema["$ref"]).removeprefix("#/$defs/")], definitions)
    if "type" in schema:
        named = schema["type"]
        return frozenset([named] if isinstance(named, str) else named)
    if "const" in schema or "enum" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return frozenset(_NAMES[type(value)] for value in values)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            options = [types_of(option, definitions) for option in schema[union]]
            return None if None in options else frozenset().union(*(o for o in options if o is not None))
    return None
