"""A small real tokenizer for tests: byte-level BPE, trained here, with the chat template one asks for.

No file and no network is needed. CHATML (hermes tools), THINKING (drops earlier thoughts) and HEADERS
(trims contents) are the shapes that model families use.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_TEMPLATES = Path(__file__).parent / "templates"
CHATML = (_TEMPLATES / "chatml.jinja").read_text()
THINKING = (_TEMPLATES / "thinking.jinja").read_text()
HEADERS = (_TEMPLATES / "headers.jinja").read_text()

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
_CORPUS = (
    'a city: <tool_call>\n{"name": "population", "arguments": {"city": "Oslo"}}\n</tool_call>',
    "<think>\nI should ask the tool for the number of inhabitants, then compare them.\n</think>\n\nRome",
    "system user assistant tool You are a helpful assistant. What is the answer? The answer is 42.",
    "<tool_response>\n2749000\n</tool_response> größer naïve 東京 😀",
)


def trained_bytes(special: tuple[str, ...] = ()) -> Tokenizer:
    """The bare tokenizer, with some control tokens in front."""
    return Tokenizer.from_str(_trained(special))


@cache
def _trained(special: tuple[str, ...]) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    return tokenizer.to_str()


def tiny_tokenizer(template: str | None = CHATML) -> Any:
    """A fresh ``PreTrainedTokenizerFast`` of a few hundred tokens with this jinja template (None: without).

    End of sequence is ``<|endoftext|>``, beginning ``<|begin_of_text|>``; the ends of turn are apart.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained_bytes(SPECIAL),
        eos_token="<|endoftext|>",
        bos_token="<|begin_of_text|>",
        additional_special_tokens=[token for token in SPECIAL if token.startswith("<|")],
    )
    tokenizer.chat_template = template
    return tokenizer
