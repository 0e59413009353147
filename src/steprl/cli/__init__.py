"""The command line: thin commands over the same functions that Python users call."""

from steprl.cli.app import main

__all__ = ["main"]
