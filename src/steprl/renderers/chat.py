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
from steprl.renderers._control import ControlTokens, Hidden
from steprl.renderers._describing import in_words
from steprl.renderers.formats import DescribedFormat, ToolCallFormat, TypedFormat
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

    A control token that is spelled in a message or a tool (``<|im_start|>`` in a page that was read) is text:
    only the template writes control tokens, and the policy, whose ids are placed as they are.
    ``allow_control_tokens`` reads what is spelled as control tokens, too.

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
        allow_control_tokens: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._format: ToolCallFormat = resolve("format", format)() if isinstance(format, str) else format
        self._template = ChatTemplate(tokenizer, template_options or {})
        self._control = ControlTokens(tokenizer)
        self.allow_control_tokens = allow_control_tokens
        self._segment_ids = lru_cache(maxsize=_CACHED)(self._encode_segment)
        self._content = lru_cache(maxsize=_CACHED)(self._decode_action)
        self.stop_ids = self._find_stop_ids()
        asked = self._template.text((QUESTION,))
        self._opened = _THINK if asked.rstrip().endswith(_THINK) else ""

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> tuple[int, ...]:
        """Ids of the prompt, ending where the assistant begins to write.

        A DescribedFormat describes the tools and their results in plain text, and the template sees neither.
        Assistant messages with ``token_ids`` are placed as these ids, but for those that the template
        rewrites: there its word is law, and its text is encoded.

        Raises:
            ConfigError: the template refuses the messages, leaves out the tools or a role, or decides by
                control tokens in texts; the tokenizer cannot write these as text; or the format cannot call
                a tool.
            ValueError: the content of a message is not what its token ids say.
        """
        for message in messages:
            self._check_content(message)
        hidden, written = self._written(messages, tools)
        self._template.check(hidden.messages, hidden.tools)
        segments, placed = self._template.cut(hidden.messages, hidden.tools, written)
        rewritten = sum(message.token_ids is not None for message in messages) > len(placed)
        # what a rewritten message stands in is new in every prompt, and no use in the cache
        encode = self._encode_segment if rewritten else self._segment_ids
        ids = list(encode(segments[0], hidden.prefix))
        for message, segment in zip(placed, segments[1:], strict=True):
            exact = message.token_ids or ()
            ids.extend(exact)
            ids.extend(self._following(exact, segment, hidden.prefix))
        return tuple(ids)

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> str:
        """What the template writes of messages, whatever their ids: the prompt as text.

        Raises:
            ConfigError: as ``render`` does.
        """
        hidden, written = self._written(messages, tools)
        return self._control.reveal(written, hidden.prefix)

    def encode(self, text: str, *, literal: bool = False) -> tuple[int, ...]:
        """Ids of a text, nothing added. Control tokens that are spelled in it are read as such, unless it is
        ``literal``.

        Raises:
            ConfigError: the tokenizer cannot write a control token as text.
        """
        if literal and not self.allow_control_tokens:
            return self._control.encode_text(text)
        return tuple(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included, spaces as they are."""
        text: str = self._tokenizer.decode(
            [int(i) for i in ids], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def parse(self, action_ids: Sequence[int], finish: str, tools: Sequence[ToolSpec] = ()) -> Action:
        """Read an action: its text without the stop token, and its tool calls with their token spans.

        ``tools`` are those of its prompt: a TypedFormat reads their arguments by their schemas.

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
            for call, start, end in self._reading(tools).parse(self._opened + text, ended)
        )
        return Action(text=text, token_ids=ids, tool_calls=calls, finish=ended)

    def write(
        self, text: str, calls: Sequence[tuple[str, Mapping[str, Any]]], tools: Sequence[ToolSpec] = ()
    ) -> str:
        """What an action with this text and these calls, as (name, arguments), looks like.

        ``parse`` with the same tools reads it back.

        Raises:
            ConfigError: the tool-call format cannot write it.
        """
        return self._reading(tools).write(text, calls)

    def save(self, folder: str) -> None:
        """Write the tokenizer and its chat template, as ``load_tokenizer`` reads them."""
        self._tokenizer.save_pretrained(folder)

    @property
    def control_ids(self) -> Mapping[str, int]:
        """The control tokens of the tokenizer, as they are spelled, and their ids."""
        return self._control.ids

    @property
    def ordinary_ids(self) -> Mapping[str, int]:
        """Its other added tokens, which any text can spell: tags of calls and thoughts, for some."""
        return self._control.ordinary_ids

    def _written(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[Hidden, str]:
        """What the template is given to write, and what it writes of that."""
        if isinstance(self._format, DescribedFormat):
            messages, tools = in_words(self._format, messages, tools), ()
        if self.allow_control_tokens:
            hidden = Hidden(messages=tuple(messages), tools=tuple(tools), prefix=None)
        else:
            sampled = {
                index: self._before_stop(tuple(message.token_ids))
                for index, message in enumerate(messages)
                if message.token_ids is not None
            }
            hidden = self._control.hide(messages, tools, sampled)
        written = self._template.text(hidden.messages, hidden.tools)
        if hidden.prefix is not None:
            self._control.check(written, hidden.prefix, self._template.text(messages, tools))
        return hidden, written

    def _encode_segment(self, written: str, prefix: str | None) -> tuple[int, ...]:
        """Ids of what the template wrote, in which stand-ins begin with ``prefix``."""
        return self.encode(written) if self.allow_control_tokens else self._control.encode(written, prefix)

    def _reading(self, tools: Sequence[ToolSpec]) -> ToolCallFormat:
        """The format, which knows the schemas of these tools if it asks for them."""
        return self._format.typed(tools) if isinstance(self._format, TypedFormat) else self._format

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

    def _following(self, sampled: tuple[int, ...], segment: str, prefix: str | None) -> tuple[int, ...]:
        """Ids of the text after a sampled message, without the end of turn if that was sampled itself.

        A cut action has sampled none: there the template's end of turn is added, not sampled. The
        segment is encoded whole before the token is dropped, so that both cases give the same rest.
        """
        if sampled and sampled[-1] in self.stop_ids:
            ids = self._segment_ids(segment.lstrip(), prefix)
            if ids and ids[0] == sampled[-1]:
                return ids[1:]
        return self._segment_ids(segment, prefix)

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
