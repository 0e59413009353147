"""Tools: typed Python functions that an agent can call, with the schema it is told about them.

``@tool`` makes one from a function and its docstring; a tool knows nothing of environments.
"""

from steprl.tools.base import Tool, tool

__all__ = ["Tool", "tool"]
