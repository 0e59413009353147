import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steprl.errors import TaskError
from steprl.tasks.answers import extract_gold, has_answer_line, numbers_equal, parse_number, stated_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        ("42.", 42),
        ("42.00", 42),
        ("$42.", 42),
        ("42%", 42),
        ("1,234.00", 1234),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("-3", -3),
        ("−3", -3),
        ("-$5", -5),
        ("$-5", -5),
        ("1/2", Fraction(1, 2)),
        ("-1/2", Fraction(-1, 2)),
        (".5", Fraction(1, 2)),
        (" 7 ", 7),
        ("1/0", None),
        ("1,2", None),
        ("4 2", None),
        ("--3", None),
        ("forty", None),
        ("", None),
        ("9" * 5000, None),
    ],
)
def test_parse_number(text, number):
    assert parse_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so it is\n#### 42", 42),
        ("####42", 42),
        ("#### 42 dollars, for 3 days", 42),
        ("#### 5\nno, wait\n#### $6", 6),
        ("12 apples\n#### none", None),
        ("from 3 to -4", -4),
        ("10-3", 3),
        ("costs $1,234.50.", Fraction(2469, 2)),
        ("1,2,3", 3),
        ("x=-3", -3),
        ("no number", None),
    ],
)
def test_stated_number(text, number):
    assert stated_number(text) == number


@given(st.integers(-(10**12), 10**12), st.text(alphabet="abc \n$%.,-/", max_size=40))
def test_a_marked_number_is_found_whatever_follows_the_space(number, trailing):
    assert stated_number(f"1 2 3\n#### {number:,} {trailing}") == number


@given(st.text(), st.text())
def test_no_text_breaks_the_search(text, gold):
    stated = stated_number(text)
    assert stated is None or any(character.isdigit() for character in text)
    assert "####" in text or not has_answer_line(text)
    number = parse_number(gold)
    assert number is None or number == number + 0


@pytest.mark.parametrize(
    "text",
    ["1,111" * 40_000, "1" * 200_000, "1," * 100_000, "$-" * 100_000, "1/" * 100_000, "1." * 100_000,
     "1,111," * 40_000 + "1", "####" + " " * 200_000 + "x", "-" * 200_000],
)  # fmt: skip
def test_long_texts_take_linear_time(text):
    def seconds(text):
        start = time.perf_counter()
        stated_number(text)
        parse_number(text)
        has_answer_line(text)
        return time.perf_counter() - start

    assert seconds(text) < 2.0  # quadratic time would be minutes


def test_numbers_equal_compares_exactly():
    assert numbers_equal("It is #### 1,234.00", "1234")
    assert numbers_equal("0.1", Fraction(1, 10))
    assert numbers_equal("half: 1/2", "0.5")
    assert not numbers_equal("0.3333", "1/3")
    assert not numbers_equal("no idea", 0)
    with pytest.raises(TaskError, match="gold answer 'many' is not a number"):
        numbers_equal("1", "many")


def test_extract_gold():
    assert extract_gold("<<1+1=2>>2 so\n#### 1,234.00") == 1234
    for text in ("the answer is 5", "#### 5 or 6", "#### ", ""):
        with pytest.raises(TaskError, match="must end with '#### number'"):
            extract_gold(text)


def test_has_answer_line():
    assert has_answer_line("so\n  #### $1,234\nbye")
    assert not has_answer_line("so #### 5")
    assert not has_answer_line("#### five")
    assert not has_answer_line("#### 5 apples")
