"""Seeds from names: stable across machines, and apart for different names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steprl.rollout import derive_seed

PARTS = st.lists(st.integers() | st.text(max_size=5).filter(lambda text: "\x1f" not in text), max_size=4)


FROZEN = [6711488920161924273, 5503060842635148382, 7229554788928137032]


def test_seeds_are_those_of_every_machine() -> None:
    assert [derive_seed(0), derive_seed(0, "train", 1), derive_seed("0")] == FROZEN


@given(PARTS)
def test_a_seed_fits_sixty_three_bits_and_repeats(parts: list[int | str]) -> None:
    assert 0 <= derive_seed(*parts) < 2**63
    assert derive_seed(*parts) == derive_seed(*parts)


@given(PARTS, PARTS)
def test_other_parts_give_another_seed(one: list[int | str], other: list[int | str]) -> None:
    assert (derive_seed(*one) == derive_seed(*other)) == (one == other)


def test_a_number_is_not_its_text() -> None:
    assert derive_seed(1) != derive_seed("1")
