"""An exact calculator: arithmetic on whole numbers and decimals, without the dust of floats.

The expression is parsed, never evaluated by Python, and every intermediate result is bounded.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

from steprl.errors import ToolError
from steprl.tools.base import tool

MAX_CHARACTERS = 300
MAX_BITS = 1_024
"""Bound on numerator and denominator of every intermediate result (about 300 digits)."""

_SIGNS = str.maketrans({"×": "*", "÷": "/", "−": "-"})
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_ADVICE = {
    "$": "Leave out '$'",
    "=": "Leave out '='",
    "^": "Powers are written **",
    ",": "Commas may only group thousands, as in 1,234",
}
_REMAINDER = "% is the remainder of a division; write 5% as 5/100"
_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: operator.mod,
}


@tool
def calculator(expression: str) -> str:
    """Work out an arithmetic expression.

    Args:
        expression: numbers with + - * / // % ** and parentheses
    """
    source = _GROUPED.sub(lambda found: found[0].replace(",", ""), expression.translate(_SIGNS)).strip()
    shown = repr(expression if len(expression) <= 60 else expression[:60] + "…")
    if len(source) > MAX_CHARACTERS:
        raise ToolError(f"the expression is too long: {len(source)} characters, {MAX_CHARACTERS} are allowed")
    strange = re.search(r"[^\d.+\-*/%() ]", source, re.ASCII)
    if strange:
        advice = _ADVICE.get(strange[0], "Use numbers and + - * / // % ** ( ) only")
        raise ToolError(f"cannot read {strange[0]!r} in {shown}. {advice}.")
    if re.search(r"% *[+-]", source):  # more likely 10% + 5 than the remainder by a signed number
        raise ToolError(f"cannot read {shown}: a sign follows %. {_REMAINDER}; a signed divisor as 7%(-5).")
    try:
        tree = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "too deeply nested"
        if reason.startswith("leading zeros"):
            reason = "a number starts with 0. Leave out leading zeros"  # Python's advice is octal
        remainder = f". {_REMAINDER}" if "%" in source else ""
        raise ToolError(f"cannot read {shown}: {reason}{remainder}") from None
    try:
        return _written(_value(tree.body, source))
    except ZeroDivisionError:
        raise ToolError(f"division by zero in {shown}") from None


def _value(node: ast.expr, source: str) -> Fraction:
    if isinstance(node, ast.Constant):
        if isinstance(node.value, type(...)):
            raise ToolError("'...' is not a number. Write the numbers out.")
        # from the digits as written: the parser's float would already be rounded
        return _bounded(Fraction(source[node.col_offset : node.end_col_offset]))
    if isinstance(node, ast.UnaryOp):
        operand = _value(node.operand, source)
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, source), _value(node.right, source)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        return _bounded(_BINARY[type(node.op)](left, right))
    if isinstance(node, ast.Call):
        raise ToolError("an operator is missing before a parenthesis. Write 2*(3), not 2(3).")
    raise ToolError("a pair of parentheses is empty")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ToolError(f"exponents must be whole numbers, got {_written(exponent)}")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if base not in (-1, 0, 1) and bits * abs(exponent) > 2 * MAX_BITS:
        raise ToolError("the result of ** is too large")
    # whole exponents of a Fraction give a Fraction, but 0, 1 and -1 need no work however large they are
    return _bounded(Fraction(base ** int(exponent)))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ToolError(f"a number in the calculation is too large: over {MAX_BITS} bits")
    return value


def _written(value: Fraction) -> str:
    """Exact when six decimals are enough, else rounded to them; below 0.001 to six digits, as in 1.5e-09."""
    millionths = round(value * 10**6)
    if abs(value) < Fraction(1, 1000) and millionths != value * 10**6:
        return f"{float(value):.6g}"
    whole, rest = divmod(abs(millionths), 10**6)
    sign = "-" if millionths < 0 else ""
    decimals = f".{rest:06d}".rstrip("0") if rest else ""
    return f"{sign}{whole}{decimals}"
