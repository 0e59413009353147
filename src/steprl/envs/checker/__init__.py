"""The checker: plays an environment the way training will, and says what would go wrong there and why.

The same function serves `steprl env check` and the tests of whoever writes an environment.
"""

from steprl.envs.checker.check import check_env
from steprl.envs.checker.report import Check, CheckReport, PolicyScore

__all__ = ["Check", "CheckReport", "PolicyScore", "check_env"]
