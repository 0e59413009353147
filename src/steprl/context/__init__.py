"""Context rules, ``o_{t+1} = C(z_0 … z_t)`` (paper eq. 6, 13): what the model sees next.

A rule arranges messages and is a pure function of the history, which stays exact and complete.
"""

from steprl.context.append_only import AppendOnly

__all__ = ["AppendOnly"]
