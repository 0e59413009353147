import ast
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steprl.errors import ToolError
from steprl.tools.calculator import calculator


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("1+2", "3"),
        ("0.1+0.2", "0.3"),
        ("2 + 3 * 4", "14"),
        ("(2+3)*4", "20"),
        ("-3 - -4", "1"),
        ("-2**2", "-4"),
        ("7//2", "3"),
        ("-7//2", "-4"),
        ("-7 % 3", "2"),
        ("10/4", "2.5"),
        ("10/5", "2"),
        ("10/3", "3.333333"),
        ("-2/3", "-0.666667"),
        ("2/3*3", "2"),
        ("1.05**10", "1.628895"),
        ("2**-1", "0.5"),
        ("0**99999999999", "0"),
        ("(-1)**9999999999", "-1"),
        ("1,234 × 2 − 1", "2467"),
        ("9 ÷ 2", "4.5"),
        ("1/3/1000000000", "3.33333e-10"),
        ("123456789012345678901234567890 + 1", "123456789012345678901234567891"),
    ],
)
def test_results_are_exact(expression, result):
    assert calculator(expression) == result


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1/0", "division by zero"),
        ("5 % (2-2)", "division by zero"),
        ("0**-1", "division by zero"),
        ("2**0.5", "exponents must be whole numbers, got 0.5"),
        ("9**9**9", "too large"),
        ("9**9**9**9", "too large"),
        ("8**300 * 8**300", "a number in the calculation is too large"),
        ("1" * 301, "too long: 301 characters, 300 are allowed"),
        ("$5", "Leave out '[$]'"),
        ("3+4=", "Leave out '='"),
        ("2^3", r"Powers are written \*\*"),
        ("1,23", "Commas may only group thousands"),
        ("1,234,56", "Commas may only group thousands"),
        ("50%", "write 5% as 5/100"),
        ("2(3)", "an operator is missing"),
        ("()", "empty"),
        ("(1", "never closed"),
        ("", "cannot read ''"),
        ("x+1", "cannot read 'x' in 'x[+]1'. Use numbers"),
        ("1e5", "cannot read 'e'"),
        ("1_000", "cannot read '_'"),
        ("__import__('os')", "cannot read '_'"),
        ("(" * 150 + "1" + ")" * 149, "cannot read"),
    ],
)
def test_what_cannot_be_calculated_is_explained(expression, reason):
    with pytest.raises(ToolError, match=reason):
        calculator(expression)


@given(st.text(alphabet="0123456789.,+-*/%() ", max_size=60))
def test_any_text_gives_a_number_or_a_tool_error(expression):
    try:
        written = calculator(expression)
    except ToolError as refused:
        assert str(refused)
    else:
        assert isinstance(Fraction(written), Fraction)  # a number, and nothing else


@given(
    st.lists(st.tuples(st.sampled_from("+-*"), st.integers(-999, 999)), min_size=1, max_size=8),
    st.integers(-999, 999),
)
def test_whole_numbers_agree_with_python(steps, first):
    expression = str(first) + "".join(f" {sign} {number}" for sign, number in steps)
    assert calculator(expression) == str(eval(compile(ast.parse(expression, mode="eval"), "", "eval")))


@given(st.decimals(-(10**6), 10**6, places=6, allow_nan=False))
def test_six_decimals_survive(number):
    assert Fraction(calculator(f"{number:f}")) == Fraction(number)


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("0.00000051", "5.1e-07"),
        ("0.0000012345", "1.2345e-06"),
        ("0.0005123456", "0.000512346"),
        ("-0.0000149", "-1.49e-05"),
        ("0.000001", "0.000001"),
        ("7%(-5)", "-3"),
    ],
)
def test_small_numbers_keep_six_digits(expression: str, result: str) -> None:
    assert calculator(expression) == result


@pytest.mark.parametrize(
    ("expression", "told"),
    [("...", "not a number"), ("10%+5", "write 5% as 5/100"), ("10% -5", "5/100"), ("007", "leading zeros")],
)
def test_what_python_reads_but_nobody_means_is_refused_with_advice(expression: str, told: str) -> None:
    with pytest.raises(ToolError, match=told) as caught:
        calculator(expression)
    assert "0o" not in str(caught.value)
