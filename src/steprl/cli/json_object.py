"""What a command is given as a JSON object, such as ``--args '{"depth": 3}'``."""

from __future__ import annotations

import json
from typing import Any

from steprl.errors import ConfigError


def json_object(option: str, text: str) -> dict[str, Any]:
    """The object that ``text`` holds; ``option`` names it in an error.

    Raises:
        ConfigError: it is no JSON, or no object.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{option} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{option} must be a JSON object, got {text}")
    return value
