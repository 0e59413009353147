"""What many tests need and is slow to make: a model folder."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny random Llama and the tiny tokenizer, as ``save_pretrained`` writes them."""
    from tiny import tiny_tokenizer
    from tiny_model import tiny_llama

    folder = str(tmp_path_factory.mktemp("models") / "tiny-policy")
    tokenizer = tiny_tokenizer()
    tiny_llama(len(tokenizer), max_position_embeddings=2048).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
