"""Context rules, ``o_{t+1} = C(z_0 … z_t)`` (paper eq. 6, 13): what the model sees next.

A rule arranges messages and is a pure function of the history, which stays exact and complete.
"""

from steprl.context.append_only import AppendOnly
from steprl.context.evidence import Evidence
from steprl.context.llm_summary import LlmSummary
from steprl.context.mixture import Mixture
from steprl.context.sliding_window import SlidingWindow
from steprl.context.summary_state import SummaryState
from steprl.context.think_strip import ThinkStrip
from steprl.context.token_budget import TokenBudget

__all__ = [
    "AppendOnly",
    "Evidence",
    "LlmSummary",
    "Mixture",
    "SlidingWindow",
    "SummaryState",
    "ThinkStrip",
    "TokenBudget",
]
