"""Between messages and token ids: chat templates, tool-call formats and the token spans of calls.

What was sampled is placed into later prompts id by id, so nothing is tokenised twice (paper eq. 11-12).
"""

from steprl.renderers.chat import ChatRenderer
from steprl.renderers.formats import ParsedCall, ToolCallFormat
from steprl.renderers.hermes import HermesFormat
from steprl.renderers.loading import load_tokenizer
from steprl.renderers.prompts import extends, prompt_ids

__all__ = [
    "ChatRenderer",
    "HermesFormat",
    "ParsedCall",
    "ToolCallFormat",
    "extends",
    "load_tokenizer",
    "prompt_ids",
]
