"""The renderer of any Hugging Face tokenizer with a chat template.

Messages that were sampled enter a prompt as their exact ids, and only the text between them is tokenised,
so with an append-only template every prompt extends the last prompt and action token for token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast, get_args

from steprl.errors import ConfigError
from steprl.registry import resolve
from steprl.renderers.formats import ToolCallFormat
from steprl.renderers.spans import TokenSpans
from steprl.renderers.template import QUESTION, ChatTemplate
from steprl.types import Action, Finish, Message, ToolSpec

_THINK = "<think>"
_CACHED = 1024


class ChatRenderer:
    """Messages ↔ token ids (see types.Renderer) through the tokenizer's own chat template.

    ``format`` is the name of a tool-call format or one itself; ``template_options`` are variables of the
    template, such as ``{"enable_thinking": False}``. A template that writes today's date should be given
    a fixed one here, or a run over midnight changes its prompts.

    ``stop_ids`` are the tokenizer's end-of-sequence token and the special token that the template puts
    after an assistant message.

    Raises:
        ConfigError: no chat template, nothing to stop at, or an unknown format.
    """

    def __init__(
        self,
        tokenizer: Any,
        format: str | ToolCallFormat = "hermes",
        *,
        template_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._format: ToolCallFormat = resolve("format", format)() if isinstance(format, str) else format
        self._template = ChatTemplate(tokenizer, template_options or {})
        self._segment_ids = lru_cache(maxsize=_CACHED)(self.encode)
        self._content = lru_cache(maxsize=_CACHED)(self._decode_action)
        self.stop_ids = self._find_stop_ids()
        asked = self._template.text((QUESTION,))
        self._opened = _THINK if asked.rstrip().endswith(_THINK) else ""

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> tuple[int, ...]:
        """Ids of the prompt, ending where the assistant begins to write.

        Assistant messages with ``token_ids`` are placed as these ids. When the template rewrites one of
        them, its word is law: the whole prompt is its text, encoded, and does not extend the last one.

        Raises:
            ConfigError: the template refuses the messages, leaves out the tools or a role.
            ValueError: the content of a message is not what its token ids say.
        """
        self._template.check(messages, tools)
        sampled = [message.token_ids for message in messages if message.token_ids is not None]
        for message in messages:
            self._check_content(message)
        written = self._template.text(messages, tools)
        segments = self._template.segments(messages, tools, written)
        if segments is None:
            return self.encode(written)
        ids = list(self._segment_ids(segments[0]))
        for exact, segment in zip(sampled, segments[1:], strict=True):
            ids.extend(exact)
            ids.extend(self._following(exact, segment))
        return tuple(ids)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of plain text, nothing added. Control tokens that stand in the text are read as such."""
        return tuple(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included, spaces as they are."""
        text: str = self._tokenizer.decode(
            [int(i) for i in ids], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def parse(self, action_ids: Sequence[int], finish: str) -> Action:
        """Read an action: its text without the stop token, and its tool calls with their token spans.

        Raises:
            ValueError: ``finish`` is not one of stop, length, abort.
        """
        if finish not in get_args(Finish):
            raise ValueError(f"finish must be one of {', '.join(get_args(Finish))}, got '{finish}'")
        ended = cast(Finish, finish)
        ids = tuple(int(i) for i in action_ids)
        text = self._decode_action(ids)
        spans = TokenSpans(self.decode, self._before_stop(ids), text)
        shift = len(self._opened)
        # when the prompt opened the thought, the format is told by the tag that the action lacks
        calls = tuple(
            replace(call, span=spans.span(start - shift, end - shift))
            for call, start, end in self._format.parse(self._opened + text, ended)
        )
        return Action(text=text, token_ids=ids, tool_calls=calls, finish=ended)

    def write(self, text: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """What an action with this text and these calls, as (name, arguments), looks like.

        Raises:
            ConfigError: the tool-call format cannot write it.
        """
        return self._format.write(text, calls)

    def save(self, folder: str) -> None:
        """Write the tokenizer and its chat template, as ``load_tokenizer`` reads them."""
        self._tokenizer.save_pretrained(folder)

    def _before_stop(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        return ids[:-1] if ids and ids[-1] in self.stop_ids else ids

    def _decode_action(self, ids: tuple[int, ...]) -> str:
        return self.decode(self._before_stop(ids))

    def _check_content(self, message: Message) -> None:
        """A rule that rewrites a sampled message and keeps its ids would change nothing, silently."""
        if message.token_ids is None:
            return
        sampled = self._content(tuple(message.token_ids))
        if sampled.strip() != message.content.strip():
            raise ValueError(
                f"an assistant message says {message.content[:60]!r} but its token ids say {sampled[:60]!r}. "
                f"Whoever rewrites a sampled message must drop its token_ids."
            )

    def _following(self, sampled: tuple[int, ...], segment: str) -> tuple[int, ...]:
        """Ids of the text after a sampled message, without the end of turn if that was sampled itself.

        A cut action has sampled none: there the template's end of turn is added, not sampled. The
        segment is encoded whole before the token is dropped, so that both cases give the same rest.
        """
        if sampled and sampled[-1] in self.stop_ids:
            ids = self._segment_ids(segment.lstrip())
            if ids and ids[0] == sampled[-1]:
                return ids[1:]
        return self._segment_ids(segment)

    def _find_stop_ids(self) -> tuple[int, ...]:
        following = self.encode(self._template.answered[1].lstrip())[:1]
        control = set(self._tokenizer.all_special_ids)
        control |= {i for i, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        eos = self._tokenizer.eos_token_id
        candidates = (*(() if eos is None else (eos,)), *(i for i in following if i in control))
        if not candidates:
            raise ConfigError(
                f"the tokenizer {self._tokenizer.name_or_path!r} gives nothing to stop at: it has no "
                f"eos_token, and its chat template puts no special token after an assistant message. "
                f"Set tokenizer.eos_token."
            )
        return tuple(dict.fromkeys(candidates))
