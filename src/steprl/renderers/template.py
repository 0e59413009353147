"""A tokenizer's chat template: the text it writes, and that text cut where sampled messages stand.

The template's word is law. What it refuses or leaves out is a ConfigError; around a message that it rewrites
there is no cut.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from steprl.errors import ConfigError
from steprl.types import Message, ToolSpec

MARK = "@@steprl-mark@@"
"""Stands in for a content when a template is asked where it puts it."""
_END_THINK = "</think>"
QUESTION = Message(role="user", content="?")


class ChatTemplate:
    """The jinja template of one tokenizer. ``options`` are variables of the template.

    Raises:
        ConfigError: the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: Any, options: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._options = dict(options)
        self._shown: set[str] = set()
        if not tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer {self._name} has no chat template. Use the tokenizer of an instruct model, "
                f"or set tokenizer.chat_template to the jinja template that the model was trained with."
            )

    @property
    def _name(self) -> str:
        return repr(self._tokenizer.name_or_path)

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
        """What the template writes, up to where the assistant begins.

        Raises:
            ConfigError: the template refuses the messages, or cannot be run.
        """
        from jinja2.exceptions import TemplateError  # comes with the tokenizer, not with an environment

        try:
            written: str = self._tokenizer.apply_chat_template(
                [_as_json(message) for message in messages],
                tools=[tool.to_json() for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=True,
                **self._options,
            )
        except (TemplateError, ValueError) as error:
            roles = ", ".join(message.role for message in messages)
            raise ConfigError(
                f"the chat template of {self._name} refuses messages of the roles [{roles}]: {error}. "
                f"Arrange the messages as it wants them, or use another template."
            ) from error
        return written

    def check(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
        """Make sure that what is given is also shown; every role, and tools, once.

        Raises:
            ConfigError: the template leaves out the tools, or the messages of a role.
        """
        for role in dict.fromkeys(message.role for message in messages):
            if role in self._shown:
                continue
            marked = [replace(m, content=MARK) if m.role == role else m for m in messages]
            if MARK not in self.text(marked, tools):
                raise ConfigError(
                    f"the chat template of {self._name} leaves out messages of the role '{role}', so the "
                    f"model would never see them. Use a template that knows the role."
                )
            self._shown.add(role)
        if tools and "tools" not in self._shown:
            if self.text(messages, tools) == self.text(messages):
                raise ConfigError(
                    f"the chat template of {self._name} ignores tools, so the model would never hear of "
                    f"{', '.join(tool.name for tool in tools)}. Use a template with a tools block, or "
                    f"describe the tools in the system message and pass none."
                )
            self._shown.add("tools")

    def cut(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], written: str
    ) -> tuple[tuple[str, ...], tuple[Message, ...]]:
        """``written``, the text of ``messages``, cut around those N that carry token ids and stand in it
        unchanged: N + 1 segments, and these messages.

        A message that the template rewrites (drops its thinking, say) stays in the segment around it. Nothing
        is cut unless segments and contents are proved to make up ``written``. White space around a message
        may differ; before it stands what stood there when it was sampled.
        """
        serial = 0
        while f"@@steprl-{serial}-" in written:
            serial += 1
        rewritten: set[int] = set()
        while unchanged := _unchanged(messages, written, rewritten):
            marks = [f"@@steprl-{serial}-{index}@@" for index in unchanged]
            # a thought stays before its mark: templates write other text around messages without one
            thoughts = [_thought(messages[index].content) for index in unchanged]
            marked = [*messages]
            for index, thought, mark in zip(unchanged, thoughts, marks, strict=True):
                marked[index] = replace(messages[index], content=thought + mark)
            parts, last = _split(self.text(marked, tools), thoughts, marks)
            lost = {index for index, part in zip(unchanged, parts, strict=True) if part is None}
            if lost:
                rewritten |= lost
                continue
            segments = (*(part for part in parts if part is not None), last)
            placed = tuple(messages[index] for index in unchanged)
            if not _agrees(written, segments, [message.content for message in placed]):
                break
            return (*map(self._as_asked, segments[:-1]), last), placed
        return (written,), ()

    @cached_property
    def answered(self) -> tuple[str, str]:
        """The text before and after an assistant message that answers a user and is answered by one."""
        assistant = Message(role="assistant", content=MARK)
        before, _, after = self.text((QUESTION, assistant, QUESTION)).partition(MARK)
        return before, after

    def _as_asked(self, segment: str) -> str:
        """Text before an assistant message, as it was when that was sampled."""
        before, asked = self._lead
        return segment.removesuffix(before) + asked if segment.endswith(before) else segment

    @cached_property
    def _lead(self) -> tuple[str, str]:
        """White space before an assistant message: in later prompts, and in the one it was sampled from.

        Some templates write a space there that their generation prompt does not end with.
        """
        before, asked = self.answered[0], self.text((QUESTION,))
        if before.rstrip() != asked.rstrip():
            return "", ""
        return before[len(before.rstrip()) :], asked[len(asked.rstrip()) :]


def _as_json(message: Message) -> dict[str, str]:
    entry: dict[str, str] = {"role": message.role, "content": message.content}
    if message.name is not None:
        entry["name"] = message.name
    if message.tool_call_id is not None:
        entry["tool_call_id"] = message.tool_call_id
    return entry


def _unchanged(messages: Sequence[Message], written: str, rewritten: Collection[int]) -> list[int]:
    """Which messages with token ids may stand in the text as they are: their contents do, in order.

    The last ones first: thoughts are dropped from the beginning on, and some are thought twice.
    """
    found: list[int] = []
    end = len(written)
    for index in reversed(range(len(messages))):
        if messages[index].token_ids is not None and index not in rewritten:
            start = written.rfind(messages[index].content.strip(), 0, end)
            if start >= 0:
                found.append(index)
                end = start
    return found[::-1]


def _thought(content: str) -> str:
    """A content up to the end of its thinking; empty without."""
    before, end, _ = content.rpartition(_END_THINK)
    return before + end


def _split(text: str, thoughts: Sequence[str], marks: Sequence[str]) -> tuple[list[str | None], str]:
    """The text before each mark and its thought, None where these are not to be found, and after the last."""
    parts: list[str | None] = []
    for thought, mark in zip(thoughts, marks, strict=True):
        before, found, after = text.partition(mark)
        text = after if found else text
        core = thought.strip()
        before = before.rstrip() if core else before
        parts.append(before.removesuffix(core) if found and before.endswith(core) else None)
    return parts, text


def _agrees(written: str, segments: Sequence[str], contents: Sequence[str]) -> bool:
    """Whether ``written`` is the segments with the contents between them, up to white space around these."""
    if not written.startswith(segments[0]):
        return False
    at = len(segments[0])
    for content, segment in zip(contents, segments[1:], strict=True):
        core = content.strip()
        if core:
            at = _after_space(written, at)
            if not written.startswith(core, at):
                return False
            at += len(core)
        latest = _after_space(written, at)
        while not written.startswith(segment, at):
            if at >= latest:
                return False
            at += 1
        at += len(segment)
    return at == len(written)


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at
