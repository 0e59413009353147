"""Seeds derived from names, so that no random state has to be carried, saved or shared."""

from __future__ import annotations

from hashlib import blake2b


def derive_seed(*parts: int | str) -> int:
    """A seed in 0 … 2^63 - 1 from any mix of numbers and strings: same parts, same seed, on any machine."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
