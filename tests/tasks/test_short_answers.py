import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steprl.tasks.short_answers import exact_match, f1_score, is_well_tagged, normalised, tagged_answer

ANSWERS = st.text(alphabet="abthe .,-!'ANnoys\n", max_size=24)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("The  Beatles", "beatles"),
        ("an apple a day", "apple day"),
        ("U.S.A.", "usa"),
        ("rock-and-roll", "rockandroll"),
        ("Theatre", "theatre"),
        ("  Two\nlines ", "two lines"),
        ("Beyoncé", "beyoncé"),
        ("1,234", "1234"),
        ("the", ""),
        ("?!", ""),
    ],
)
def test_what_is_left_of_an_answer(text, left):
    assert normalised(text) == left


@pytest.mark.parametrize(
    ("answer", "golds", "exact", "f1"),
    [
        ("The Beatles", ["beatles"], 1.0, 1.0),
        ("chief of PROTOCOL.", ["Chief of Protocol"], 1.0, 1.0),
        ("Chief", ["Chief of Protocol"], 0.0, 0.5),
        ("the chief of the protocol", ["Chief of Protocol"], 1.0, 1.0),
        ("red red blue", ["red green"], 0.0, 2 * 1 / 5),
        ("red red", ["red red"], 1.0, 1.0),
        ("yes", ["yes"], 1.0, 1.0),
        ("Yes.", ["yes"], 1.0, 1.0),
        ("yes it is", ["yes"], 0.0, 0.0),
        ("yes", ["yes it is"], 0.0, 0.0),
        ("no", ["yes"], 0.0, 0.0),
        ("noanswer", ["no answer at all"], 0.0, 0.0),
        ("noanswer", ["noanswer"], 1.0, 1.0),
        ("no one", ["no man"], 0.0, 0.5),
        ("", ["Kappa"], 0.0, 0.0),
        ("the", ["Kappa"], 0.0, 0.0),
        ("", ["A"], 0.0, 0.0),
        ("the", ["A"], 0.0, 0.0),
        ("a", ["A"], 1.0, 0.0),
        ("bit", ["Otto Bit", "Bit"], 1.0, 1.0),
        ("otto b", ["Bit", "Otto Bit"], 0.0, 0.5),
        ("yes it is", ["yes", "it is"], 0.0, 0.8),
        ("Kappa", [], 0.0, 0.0),
    ],
)
def test_exact_match_and_f1(answer, golds, exact, f1):
    assert exact_match(answer, golds) == exact
    assert f1_score(answer, golds) == pytest.approx(f1)


@given(ANSWERS, ANSWERS)
def test_both_are_symmetric_and_an_exact_match_has_all_of_f1(one, other):
    assert f1_score(one, [other]) == f1_score(other, [one])
    assert 0.0 <= f1_score(one, [other]) <= 1.0
    if exact_match(one, [other]) and normalised(other):
        assert f1_score(one, [other]) == 1.0


@given(ANSWERS, st.lists(ANSWERS, min_size=1, max_size=4))
def test_a_further_right_answer_never_makes_an_answer_worse(answer, golds):
    assert exact_match(answer, golds) == max(exact_match(answer, [gold]) for gold in golds)
    assert f1_score(answer, golds) == max(f1_score(answer, [gold]) for gold in golds)


@given(ANSWERS)
def test_case_articles_and_white_space_do_not_matter(answer):
    said = normalised(answer)
    assert normalised(said) == said
    if said:
        assert exact_match(f"  The {said.upper()}!", [answer]) == 1.0


@pytest.mark.parametrize(
    ("text", "answer", "well"),
    [
        ("So it is <answer> Kappa </answer>", "Kappa", True),
        ("<answer>Kappa</answer> I think.", "Kappa", True),
        ("<answer>two\nlines</answer>", "two\nlines", True),
        ("<answer>A</answer> no, <answer>B</answer>", "B", False),
        ("<answer><answer>B</answer>", "B", False),
        ("<answer></answer>", "", False),
        ("<answer>Kappa", None, False),
        ("Kappa</answer>", None, False),
        ("</answer>Kappa<answer>", None, False),
        ("Kappa", None, False),
        ("", None, False),
    ],
)
def test_the_answer_between_tags(text, answer, well):
    assert tagged_answer(text) == answer
    assert is_well_tagged(text) is well


@given(st.lists(st.sampled_from(["<answer>", "</answer>", "x", " "]), max_size=12).map("".join))
def test_no_text_breaks_the_tags(text):
    answer = tagged_answer(text)
    assert answer is None or answer in text
    assert not is_well_tagged(text) or answer


def test_long_texts_take_linear_time():
    start = time.perf_counter()
    for text in ("<answer>" * 100_000, "the " * 200_000, "<answer></answer>" * 50_000):
        tagged_answer(text)
        f1_score(text, [text])
    assert time.perf_counter() - start < 5.0  # quadratic time would be minutes
