"""Finds a tokenizer: a folder, or a Hugging Face hub id, from the local cache if it is there.

``transformers`` is imported here and only when asked, so that the rest of the room costs no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steprl.errors import ConfigError


def load_tokenizer(path_or_id: str | Path) -> Any:
    """The Hugging Face tokenizer of a folder or of a hub id.

    A hub id is looked up in the local cache first and downloaded only if it is not there. No code that
    comes with a model is run.

    Raises:
        ConfigError: no such folder, no tokenizer in it, not to be had from the hub, or transformers is
            not installed.
    """
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tokenizer '{path_or_id}' needs the package '{error.name}', which is not installed. "
            f"Try: pip install 'steprl[train]'"
        ) from error
    folder = Path(path_or_id).expanduser()
    if folder.is_dir():
        try:
            return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the folder '{folder}' holds no tokenizer that transformers can read. It needs "
                f"tokenizer.json and tokenizer_config.json, as save_pretrained writes them. "
                f"transformers says: {_first_line(error)}"
            ) from error
    name = str(path_or_id)
    if name.startswith((".", "/", "~")) or name.count("/") != 1 and ("/" in name or "\\" in name):
        raise ConfigError(
            f"there is no tokenizer folder '{name}'. Name an existing folder, or a hub id 'owner/model'."
        )
    if Path(name).parent.is_dir() and "/" in name:
        raise ConfigError(
            f"there is no folder '{name}', while '{Path(name).parent}' is a folder here. Check the path; a "
            f"policy of your own is built with: steprl policy build --out {name}"
        )
    return _from_hub(AutoTokenizer, name)


def _from_hub(auto_tokenizer: Any, name: str) -> Any:
    try:
        return auto_tokenizer.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError):
        pass  # not in the cache, or only parts of it: ask the hub
    try:
        return auto_tokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"'{name}' is no folder here, is not in the local Hugging Face cache, and could not be read "
            f"from the hub. Check the name, or download it once where there is a network and pass its "
            f"folder. transformers says: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
