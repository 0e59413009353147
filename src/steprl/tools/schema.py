"""From a typed function and its docstring to the arguments a tool takes: their JSON schema and their check.

Pydantic does both. The agent reads the messages made here, so they say what to write instead.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import SimpleNamespace
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails

from steprl.errors import ConfigError, ToolError, unknown

_SECTION = re.compile(r"(Args|Arguments|Returns|Yields|Raises|Examples?|Notes?):\s*")
_ENTRY = re.compile(r"(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
_REMARK = re.compile(r"Notes?|Warnings?|Examples?|Tips?|Hints?|Important|Caution")
_SHOWN = 80  # characters of a wrong value that are repeated to the agent


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arguments:
    """The arguments of one tool: ``schema`` for the model, ``check`` for what the model wrote."""

    schema: Mapping[str, Any]
    model: type[BaseModel]
    names: tuple[str, ...]

    def check(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the function's types; those left out are left to the function's defaults.

        Strict as JSON is: text is not a number, but a list may become a tuple and text a date.

        Raises:
            ToolError: one is missing, unknown or of the wrong type.
        """
        try:
            validated = self.model.model_validate_json(json.dumps(dict(arguments)))
        except ValidationError as error:
            problems = "; ".join(
                self._problem(detail, arguments) for detail in error.errors(include_url=False)
            )
            raise ToolError(f"{tool}: {problems}. {self._expected()}") from None
        except (TypeError, ValueError) as error:
            raise ToolError(f"{tool}: the arguments are not JSON: {error}. {self._expected()}") from None
        given = validated.model_fields_set
        fields = enumerate(self.names)
        return {name: getattr(validated, _field(i)) for i, name in fields if _field(i) in given}

    def _problem(self, detail: ErrorDetails, arguments: Mapping[str, Any]) -> str:
        name = ".".join(_path(detail, arguments))
        if detail["type"] == "missing":
            return f"argument '{name}' is missing"
        if detail["type"] == "extra_forbidden":
            close = get_close_matches(name, self.names, n=1, cutoff=0.5)
            return f"unknown argument '{name[:_SHOWN]}'" + (f" (did you mean '{close[0]}'?)" if close else "")
        shown = repr(detail["input"])
        shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
        subject = f"argument '{name}'" if name else "the arguments"
        message = detail["msg"]
        if message.startswith("Input "):
            return f"{subject} {message.removeprefix('Input ')}, got {shown}"
        return f"{subject}: {message}, got {shown}"

    def _expected(self) -> str:
        required, defined = self.schema.get("required", ()), self.schema.get("$defs", {})
        shapes = (
            f"{name} ({_kind(property, defined)}{'' if name in required else ', optional'})"
            for name, property in self.schema["properties"].items()
        )
        return f"Arguments: {', '.join(shapes)}." if self.names else "It takes no arguments."


def arguments_of(function: Callable[..., Any], name: str, described: Mapping[str, str]) -> Arguments:
    """Read the arguments from the signature; a first parameter called ``self`` is not one.

    ``described`` are the texts of the docstring's ``Args:`` section.

    Raises:
        ConfigError: a parameter has no type, or one that JSON cannot express, or cannot be named by a
            call (``*args``); or ``described`` names something that is no parameter.
    """
    parameters = {key: p for key, p in inspect.signature(function).parameters.items() if key != "self"}
    for key, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool '{name}': '{parameter}' cannot be passed by name. Use plain parameters.")
        if parameter.annotation is parameter.empty:
            raise ConfigError(f"tool '{name}': parameter '{key}' has no type. Annotate it: {key}: str")
    for key in described:
        if key not in parameters:
            raise ConfigError(f"tool '{name}', docstring: " + unknown("argument", key, parameters))
    try:
        model = _model(function, name, parameters, described)
        schema = model.model_json_schema(schema_generator=_Untitled)
    except (NameError, PydanticUserError) as error:
        raise ConfigError(
            f"tool '{name}': a parameter has a type that cannot be told to a model: {error}. "
            f"Use types that JSON knows, dataclasses or pydantic models, defined at module level."
        ) from error
    # what every schema would repeat costs tokens in every prompt and tells the model nothing
    brief = {key: value for key, value in schema.items() if key not in ("title", "additionalProperties")}
    ordered = {"type": brief.pop("type"), "properties": brief.pop("properties"), **brief}
    return Arguments(schema=ordered, model=model, names=tuple(parameters))


def read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description before the first section, and the entries of a Google-style ``Args:`` section.

    There a line that is not indented ends the section, and ``Note: …`` goes on with the entry before it,
    unless a parameter is called so.
    """
    parameters = inspect.signature(function).parameters
    lines = inspect.cleandoc(function.__doc__ or "").splitlines()
    description: list[str] = []
    entries: dict[str, str] = {}
    section = ""
    entry = ""
    margin = 0
    for line in lines:
        header = _SECTION.fullmatch(line)
        if header:
            section, entry, margin = header[1], "", 0
        elif not section:
            description.append(line)
        elif section in ("Args", "Arguments") and line.strip():
            indent = len(line) - len(line.lstrip())
            if indent < margin and indent == 0:  # prose after the entries
                section = "prose"
                continue
            margin = margin or indent
            found = _ENTRY.fullmatch(line.strip()) if indent <= margin else None
            if found and not (_REMARK.fullmatch(found[1]) and found[1] not in parameters):
                entry = found[1]
                entries[entry] = found[2]
            elif entry:
                entries[entry] += " " + line.strip()
    return " ".join(" ".join(description).split()), entries


class _Untitled(GenerateJsonSchema):
    """Without the titles that pydantic makes from the names: they say nothing new."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _model(
    function: Callable[..., Any],
    name: str,
    parameters: Mapping[str, inspect.Parameter],
    described: Mapping[str, str],
) -> type[BaseModel]:
    # parameters alone: a method may return its own class, which does not exist yet
    annotations = SimpleNamespace(__annotations__={key: p.annotation for key, p in parameters.items()})
    hints = get_type_hints(annotations, function.__globals__, include_extras=True)
    fields: dict[str, Any] = {}
    for index, (key, parameter) in enumerate(parameters.items()):
        settings: dict[str, Any] = {"alias": key}
        if key in described:
            settings["description"] = described[key]
        if parameter.default is not parameter.empty:
            settings["default"] = parameter.default
        # the alias keeps parameter names apart from pydantic's own (copy, json, model_config …)
        fields[_field(index)] = (hints[key], Field(**settings))
    return create_model(name, __config__=ConfigDict(extra="forbid", strict=True), **fields)


def _field(index: int) -> str:
    return f"argument_{index}"


def _path(detail: ErrorDetails, arguments: Any) -> list[str]:
    """Where in the arguments a problem lies, without the types that pydantic tried in between."""
    path: list[str] = []
    inner = arguments
    for part in detail["loc"]:
        if isinstance(inner, Mapping) and part in inner:
            inner = inner[str(part)]
        elif isinstance(inner, Sequence) and isinstance(part, int):
            inner = inner[part]
        elif detail["type"] != "missing" or part != detail["loc"][-1]:
            continue
        path.append(str(part))
    return path


def _kind(property: Mapping[str, Any], defined: Mapping[str, Any]) -> str:
    """A property's type in a word or two, for error texts; ``defined`` is what a ``$ref`` points into."""
    if "$ref" in property:
        return _kind(defined[property["$ref"].removeprefix("#/$defs/")], defined)
    if "enum" in property:
        return "one of " + ", ".join(json.dumps(value) for value in property["enum"])
    if "const" in property:
        return json.dumps(property["const"])
    if "anyOf" in property:
        return " or ".join(_kind(option, defined) for option in property["anyOf"])
    return str(property.get("type", "any"))
