"""Compare our credit, weights and losses with values that reference implementations computed.

    python tests/golden.py FILE.json

turns each case of the file into our own types, runs our own functions in float64 and compares (rtol
1e-9, atol 1e-11). Prints a line per failing case, each skipped case with its reason, and the counts;
exits 1 when a case failed. How a case is read stands in golden_cases/.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from golden_cases import credit, losses, weights
from golden_cases.common import Case, Pairs, Skip

CHECKS: Mapping[str, Callable[[Case], Pairs]] = {
    **credit.CHECKS,
    **weights.CHECKS,
    **losses.CHECKS,
}


def run(path: str | Path) -> Counter[str]:
    """Check every case of a file and print what there is to say; counts of passed, failed, skipped."""
    outcome: Counter[str] = Counter(passed=0, failed=0, skipped=0)
    for case in json.loads(Path(path).read_text(encoding="utf-8"))["cases"]:
        try:
            problem = _check(case)
        except Skip as reason:
            outcome["skipped"] += 1
            print(f"skipped {case['id']}: {reason}")
            continue
        outcome["failed" if problem else "passed"] += 1
        if problem:
            print(f"FAILED {case['id']}: {problem}")
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**outcome))
    return outcome


def _check(case: Case) -> str | None:
    """What is wrong with our answer to a case, or None."""
    if case["status"] == "reference_buggy":
        raise Skip("the reference is wrong for this input; the value is no target")
    if case["algorithm"] not in CHECKS:
        raise Skip(f"not implemented in this version: {case['algorithm']}")
    for name, (ours, expected) in CHECKS[case["algorithm"]](case).items():
        try:
            np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-11)
        except AssertionError as difference:
            return f"{name}: " + " ".join(str(difference).split())
    return None


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/golden.py FILE.json")
    sys.exit(1 if run(sys.argv[1])["failed"] else 0)
