"""A tokenizer for one environment, trained on what is said there, with a chat template's control tokens.

It is byte-level, so that any text can be written, whatever it was trained on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from jinja2.exceptions import TemplateError
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from steprl.errors import ConfigError

PADDING = "<|endoftext|>"
BYTES = 256

_CONTROL = re.compile(r"<\|[^|<>\s]{1,64}\|>")
_TAG = re.compile(r"</?[A-Za-z_][\w.-]*>")
_MARK = "@@steprl-mark@@"


def train_tokenizer(
    texts: Iterable[str], vocabulary: int, *, template: str, tags: Sequence[str]
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer in which a word is the same token wherever it stands.

    Control tokens are padding and whatever ``template`` writes as ``<|name|>``; the end of sequence is the
    one it puts after an assistant message. ``tags`` and the ``<name>`` and ``</name>`` that the template
    writes are one token each as well, but ordinary ones, as in other tokenizers with tool calls.

    Args:
        vocabulary: most tokens, control tokens included and tags not; without ``texts`` it holds bytes only.

    Raises:
        ConfigError: less vocabulary than bytes and control tokens, or a template that cannot be run or
            puts no control token after an assistant message.
    """
    control = list(dict.fromkeys([PADDING, *_CONTROL.findall(template)]))
    if vocabulary < BYTES + len(control):
        raise ConfigError(
            f"a vocabulary of {vocabulary} is too small: {BYTES} bytes and {len(control)} control tokens "
            f"need {BYTES + len(control)}."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # Words, single digits, and runs of everything else, so that a name is the same token after a
            # space and after a quote: a small model copies what it has read.
            pre_tokenizers.Split(Regex(r"[A-Za-z_]+|\d|[^A-Za-z_\d]+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=control,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    written = dict.fromkeys([*tags, *_TAG.findall(template)])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in written])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=_end_of_turn(template),
        pad_token=PADDING,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    return fast


def _end_of_turn(template: str) -> str:
    """The control token that the template puts after an assistant message."""
    asker = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    messages = [
        {"role": role, "content": content}
        for role, content in (("user", "?"), ("assistant", _MARK), ("user", "?"))
    ]
    try:
        text = str(asker.apply_chat_template(messages, chat_template=template, tokenize=False))
    except (TemplateError, ValueError) as error:
        raise ConfigError(f"the chat template cannot be run: {error}") from error
    found = _CONTROL.match(text.partition(_MARK)[2].lstrip())
    if found is None:
        raise ConfigError(
            "the chat template puts no control token (<|name|>) after an assistant message, so that the "
            "policy could never end its turn. End assistant messages with one, such as <|im_end|>."
        )
    return found.group()
