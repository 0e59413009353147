"""The code of docs/policies.md runs as it stands: an environment with an oracle, and a policy built on it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_builds_a_policy_that_solves_the_task(tmp_path: Path) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "mine.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) > 0.8
    report = json.loads((tmp_path / "policies" / "vault" / "policy.json").read_text(encoding="utf-8"))
    assert report["demonstrations"]["mean_reward"] == 1.0
