"""The golden vectors of the shared folder, when it is there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from golden import run

SHARED = Path(os.environ.get("STEPRL_SHARED", Path(__file__).resolve().parents[2] / "shared"))
VECTORS = SHARED / "golden" / "credit_and_loss.json"


@pytest.mark.skipif(not VECTORS.is_file(), reason=f"no golden vectors at {VECTORS}; set STEPRL_SHARED")
def test_we_agree_with_the_reference_implementations() -> None:
    outcome = run(VECTORS)
    assert outcome["failed"] == 0
    assert outcome["passed"] > 0


@pytest.mark.skipif(not VECTORS.is_file(), reason=f"no golden vectors at {VECTORS}; set STEPRL_SHARED")
def test_a_wrong_value_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = json.loads(VECTORS.read_text(encoding="utf-8"))["cases"]
    case = next(case for case in cases if case["algorithm"] == "agg_loss")
    case["expected"]["local"] += 1e-6
    (tmp_path / "wrong.json").write_text(json.dumps({"cases": [case]}), encoding="utf-8")
    assert run(tmp_path / "wrong.json") == {"passed": 0, "failed": 1, "skipped": 0}
    assert f"FAILED {case['id']}: local" in capsys.readouterr().out
