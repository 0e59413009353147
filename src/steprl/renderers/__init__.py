"""Between messages and token ids: chat templates, tool-call formats and the token spans of calls.

What was sampled is placed into later prompts id by id, so nothing is tokenised twice (paper eq. 11-12).
"""

from steprl.renderers.chat import ChatRenderer
from steprl.renderers.fenced_code import FencedCodeFormat
from steprl.renderers.formats import DescribedFormat, ParsedCall, ToolCallFormat, TypedFormat
from steprl.renderers.hermes import HermesFormat
from steprl.renderers.llama3_json import Llama3JsonFormat
from steprl.renderers.loading import load_tokenizer
from steprl.renderers.prompts import extends, prompt_ids
from steprl.renderers.qwen3_coder import Qwen3CoderFormat
from steprl.renderers.react import ReactFormat
from steprl.renderers.tags import TagsFormat

__all__ = [
    "ChatRenderer",
    "DescribedFormat",
    "FencedCodeFormat",
    "HermesFormat",
    "Llama3JsonFormat",
    "ParsedCall",
    "Qwen3CoderFormat",
    "ReactFormat",
    "TagsFormat",
    "ToolCallFormat",
    "TypedFormat",
    "extends",
    "load_tokenizer",
    "prompt_ids",
]
