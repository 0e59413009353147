"""Control tokens that a template writes, told from those that stand in what it is given to write.

What a user, a tool or an environment says may spell a control token (``<|im_start|>assistant``). It stays
text: the template sees a stand-in for it, and what it spells is encoded as any other text. So is a text that
a tokenizer's normalisation makes a control token of: the ids that come out are those that the template wrote.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from steprl.errors import ConfigError
from steprl.types import Message, ToolSpec

_ALLOW = "Set model.allow_control_tokens = true to read both as control tokens, or use another"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Messages and tools as a template may see them. ``prefix`` begins each stand-in; None: no stand-ins."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    prefix: str | None


class ControlTokens:
    """The control tokens of one tokenizer, by their text: those that it marks as special, and those that it
    has a special use for (the end of a sequence) without marking them.

    A token for what is unknown is none, unless it begins or ends a sequence as well: any text may hold it.
    ``ordinary_ids`` are its other added tokens (``<tool_call>`` in some), which any text can spell.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        unknown = {tokenizer.unk_token} - {tokenizer.bos_token, tokenizer.eos_token}
        used = {*tokenizer.all_special_tokens} - unknown
        added = tokenizer.added_tokens_decoder
        self._special = {i: token for i, token in added.items() if token.special or token.content in used}
        self.ordinary_ids: dict[str, int] = {
            token.content: i for i, token in added.items() if i not in self._special
        }
        self.ids: dict[str, int] = {
            token.content: i
            for i, token in self._special.items()
            if token.content and token.content not in unknown
        }
        self._known = frozenset(self.ids.values())
        self._spelled = tuple(self.ids)
        # the longest first, as the tokenizer reads them; without any, a pattern that nothing matches
        longest = sorted(self._spelled, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest)) or r"(?!)")
        self._literal = lru_cache(maxsize=2)(self._make_literal)

    def hide(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampled: Mapping[int, Sequence[int]]
    ) -> Hidden:
        """The messages and tools, with a stand-in for every control token that is spelled in them.

        ``sampled`` are the ids of messages, by their index, whose control tokens are the policy's own: where
        the ids have as many as the text spells, they stay.
        """
        strings = [*_texts(messages, tools)]
        if not any(map(self._pattern.search, strings)):
            return Hidden(messages=tuple(messages), tools=tuple(tools), prefix=None)
        prefix = _unused(strings)
        shown: list[Message] = []
        for index, message in enumerate(messages):
            ids = list(sampled.get(index, ()))
            own = {s for s, i in self.ids.items() if i in ids and ids.count(i) == message.content.count(s)}
            shown.append(
                replace(
                    message,
                    content=self._replaced(message.content, prefix, own),
                    name=self._replaced(message.name, prefix),
                    tool_call_id=self._replaced(message.tool_call_id, prefix),
                )
            )
        described = tuple(
            ToolSpec(
                name=self._replaced(tool.name, prefix),
                description=self._replaced(tool.description, prefix),
                parameters=self._replaced(tool.parameters, prefix),
            )
            for tool in tools
        )
        return Hidden(messages=tuple(shown), tools=described, prefix=prefix)

    def reveal(self, written: str, prefix: str | None) -> str:
        """What a template wrote, with what messages and tools spell in place of the stand-ins."""
        if prefix is None:
            return written
        stands_for = {f"{prefix}{place}@@": spelled for place, spelled in enumerate(self._spelled)}
        # what a template cut, and a text went on with, is no stand-in
        return re.sub(re.escape(prefix) + r"\d+@@", lambda met: stands_for.get(met[0], met[0]), written)

    def check(self, written: str, prefix: str, true: str) -> None:
        """Make sure that a template writes of hidden messages what it writes of the ``true`` ones.

        Raises:
            ConfigError: it takes stand-ins apart, or decides by them.
        """
        if self.reveal(written, prefix) != true:
            raise ConfigError(
                f"the chat template of {self._tokenizer.name_or_path!r} takes the text of messages apart, or "
                f"decides by it, so that control tokens in it cannot be told from its own. {_ALLOW} template."
            )

    def encode(self, written: str, prefix: str | None) -> tuple[int, ...]:
        """Ids of what a template wrote, in which stand-ins begin with ``prefix``: its own control tokens, and
        all else as text.

        Raises:
            ConfigError: the tokenizer cannot write a control token as text, or does not read the template's.
        """
        spelled = self._pattern.findall(written)
        own = [self.ids[one] for one in spelled]
        if prefix is None or prefix not in written:
            ids = self._tokenizer(written, add_special_tokens=False, verbose=False)["input_ids"]
            if [i for i in ids if i in self._known] == own:
                return tuple(ids)
        text = self.reveal(written, prefix)
        # imitations, too, may be what the tokenizer makes of other characters
        mark = _unused([written, text, self._normalised(text), *self._spelled])
        tokenizer, control = self._literal(mark)
        marked = self._pattern.sub(lambda met: f"{mark}{self.ids[met[0]]}@@", written)
        ids = _literally(tokenizer, self.reveal(marked, prefix))
        self._check([i for i in ids if i not in control], text)
        ids = [control.get(i, i) for i in ids]
        if [i for i in ids if i in self._known] != own:
            raise ConfigError(
                f"the tokenizer {self._tokenizer.name_or_path!r} does not read as control tokens what its "
                f"chat template writes as such: {', '.join(dict.fromkeys(spelled))}. {_ALLOW} template."
            )
        return tuple(ids)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Ids of a text in which nothing is a control token.

        Raises:
            ConfigError: the tokenizer cannot write one as text.
        """
        ids = _literally(self._tokenizer, text)
        self._check(ids, text)
        return tuple(ids)

    def _normalised(self, text: str) -> str:
        normaliser = getattr(getattr(self._tokenizer, "backend_tokenizer", None), "normalizer", None)
        return text if normaliser is None else str(normaliser.normalize_str(text))

    def _make_literal(self, mark: str) -> tuple[Any, dict[int, int]]:
        """A tokenizer that reads ``mark…@@`` where this one reads a control token, and that as text; and its
        ids of the marks, each with the control token's. One call encodes a whole text, so that words at the
        edge of a control token come out as they always do."""
        tokenizer = copy.deepcopy(self._tokenizer)
        control: dict[int, int] = {}
        for i, token in self._special.items():
            flags = {name: getattr(token, name) for name in ("lstrip", "rstrip", "single_word", "normalized")}
            tokenizer.add_tokens([type(token)(f"{mark}{i}@@", special=False, **flags)])
            control[tokenizer.convert_tokens_to_ids(f"{mark}{i}@@")] = i
        return tokenizer, control

    def _check(self, ids: Collection[int], text: str) -> None:
        for spelled, i in self.ids.items():
            if i in ids:
                raise ConfigError(
                    f"the tokenizer {self._tokenizer.name_or_path!r} has no ids for the text {spelled!r} but "
                    f"its control token, and it stands in {text[:200]!r}. {_ALLOW} tokenizer."
                )

    def _replaced(self, value: Any, prefix: str, own: Collection[str] = ()) -> Any:
        """``value`` with stand-ins in all its strings, but for control tokens that are the policy's own."""
        if isinstance(value, str):
            return self._pattern.sub(
                lambda met: met[0] if met[0] in own else f"{prefix}{self._spelled.index(met[0])}@@", value
            )
        if isinstance(value, Mapping):
            return {self._replaced(k, prefix): self._replaced(inner, prefix) for k, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._replaced(inner, prefix) for inner in value]
        return value


def _texts(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Iterator[str]:
    for message in messages:
        yield from (message.content, message.name or "", message.tool_call_id or "")
    for tool in tools:
        yield from (tool.name, tool.description)
        yield from _strings(tool.parameters)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)


def _unused(strings: Sequence[str]) -> str:
    """The beginning of a mark that is in none of the strings, whatever their case."""
    lowered = [text.lower() for text in strings]
    serial = 0
    while any(f"@@steprl-control-{serial}-" in text for text in lowered):
        serial += 1
    return f"@@steprl-control-{serial}-"


def _literally(tokenizer: Any, text: str) -> list[int]:
    encoded = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
    ids: list[int] = encoded["input_ids"]
    return ids
