"""The command line as a person uses it, in this process: what is typed, what is printed, how it ends."""

from __future__ import annotations

import sys

import pytest

from steprl.cli import main


class Terminal:
    """Runs commands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capfd = capfd

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        self._monkeypatch.setattr(sys, "argv", ["steprl", *map(str, arguments)])
        self._monkeypatch.setattr(sys, "path", list(sys.path))
        self._monkeypatch.setenv("COLUMNS", "200")
        self._capfd.readouterr()
        with pytest.raises(SystemExit) as exit:
            main()
            sys.exit(0)
        code = exit.value.code
        assert code is None or isinstance(code, int)
        told = self._capfd.readouterr()
        return code or 0, told.out, told.err

    def refused(self, *arguments: object) -> str:
        """The one line of an error that steprl raises on purpose."""
        code, _, errors = self(*arguments)
        assert code == 1 and "Traceback" not in errors
        lines = [line for line in errors.splitlines() if "Loading weights" not in line and line]
        assert len(lines) == 1, errors
        return lines[0]
