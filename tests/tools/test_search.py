"""BM25 search: what is found, what is not, in which order, and what the agent reads of it."""

import asyncio
import math
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steprl.errors import ConfigError, ToolError
from steprl.tools.search import STOP_WORDS, Bm25, Hit, Passage, build_index, listing, search_tool, words

PASSAGES = [
    Passage("Ada Byte", "Ada Byte was a programmer. She was born in Kappa."),
    Passage("Kappa", "Kappa is a town on the river Lambda."),
    Passage("The Who", "The Who are a band. They are on the radio."),
    Passage("Beyoncé", "A singer. Straße, naïve, ﬁlm."),
    Passage("Blue (film)", "Blue is a film of 1993."),
    Passage("Blue (song)", "Blue is a song of 1993."),
]
INDEX = build_index(PASSAGES)


def titles(query, results=3, index=INDEX):
    return [hit.passage.title for hit in index.search(query, results=results)]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("river", ["Kappa"]),
        ("RIVER?", ["Kappa"]),
        ("Kappa", ["Kappa", "Ada Byte"]),
        ("born in Kappa", ["Ada Byte", "Kappa"]),
        ("beyonce", ["Beyoncé"]),
        ("STRASSE naive film", ["Beyoncé", "Blue (film)"]),
        ("who", ["The Who"]),
        ("1993", ["Blue (film)", "Blue (song)"]),
    ],
)
def test_what_is_found(query, found):
    assert titles(query) == found


@pytest.mark.parametrize("query", ["zyzzyva", "the zyzzyva", "zyzzyva is not a word", "東京"])
def test_a_query_that_matches_nothing_finds_nothing(query):
    assert titles(query) == []


def test_stop_words_count_where_there_is_nothing_else():
    assert titles("the") == ["The Who", "Kappa"]
    assert titles("they are") == ["The Who"]
    assert titles("the singer") == ["Beyoncé"]
    assert "who" not in STOP_WORDS


@pytest.mark.parametrize("query", ["", "   ", "?!", "___", "'"])
def test_a_query_without_words_is_told_so(query):
    with pytest.raises(ToolError, match="holds no word. Write what to look for, such as a name"):
        INDEX.search(query, results=3)


def test_equal_scores_come_in_the_order_of_the_index():
    same = build_index([Passage(f"T{n}", "blue sky") for n in range(40)] + [Passage("grey", "blue blue sky")])
    assert titles("blue", 40, same)[0] == "grey"
    for results in (1, 7, 39):
        assert titles("sky", results, same) == [f"T{n}" for n in range(results)]


def test_more_results_than_passages_are_all_that_match():
    assert titles("blue", 1000) == ["Blue (film)", "Blue (song)"]
    with pytest.raises(ConfigError, match="results must be at least 1, got 0"):
        INDEX.search("blue", results=0)


VOCABULARY = ["ada", "blue", "kappa", "the", "of", "zeta"]
TEXTS = st.lists(st.sampled_from(VOCABULARY), max_size=8).map(" ".join)
CORPORA = st.lists(TEXTS, min_size=1, max_size=8).map(lambda texts: [*texts, "blue"])
QUERIES = st.lists(st.sampled_from([*VOCABULARY, "absent"]), min_size=1, max_size=5)


def plain_bm25(query, texts, k1, b):
    """The formula, word for word."""
    counts = [Counter(text.split()) for text in texts]
    mean = sum(count.total() for count in counts) / len(counts)
    asked = set(query) - STOP_WORDS or set(query)
    scores = []
    for count in counts:
        score = 0.0
        for word in asked & set(count):
            having = sum(word in other for other in counts)
            idf = math.log(1 + (len(counts) - having + 0.5) / (having + 0.5))
            score += idf * count[word] / (count[word] + k1 * (1 - b + b * count.total() / mean))
        scores.append(score)
    return scores


@settings(max_examples=60, deadline=None)
@given(texts=CORPORA, query=QUERIES, k1=st.sampled_from([0.9, 1.5]), b=st.sampled_from([0.0, 0.75, 1.0]))
def test_scores_are_those_of_the_formula(texts, query, k1, b):
    index = build_index([Passage("", text) for text in texts], Bm25(k1=k1, b=b))
    scores = [0.0] * len(texts)
    for hit in index.search(" ".join(query), results=len(texts)):
        scores[hit.number] = hit.score
    np.testing.assert_allclose(scores, plain_bm25(query, texts, k1, b), rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(texts=CORPORA, query=QUERIES, results=st.integers(1, 12), data=st.data())
def test_hits_are_sorted_match_and_do_not_depend_on_how_the_query_is_ordered(texts, query, results, data):
    index = build_index([Passage("", text) for text in texts])
    hits = index.search(" ".join(query), results=results)
    everything = index.search(" ".join(query), results=len(texts))
    shuffled = data.draw(st.permutations([*query, query[0]]))
    assert hits == index.search(" ".join(shuffled), results=results) == everything[:results]
    assert [(-hit.score, hit.number) for hit in hits] == sorted((-hit.score, hit.number) for hit in hits)
    asked = set(query) - STOP_WORDS or set(query)
    assert {hit.number for hit in everything} == {
        n for n, text in enumerate(texts) if asked & set(text.split())
    }


@given(st.text())
def test_no_text_breaks_the_words(text):
    assert all(word and word == word.casefold() for word in words(text))


@pytest.mark.parametrize("passages", [[], [Passage("", "?!"), Passage("", "")]])
def test_an_index_needs_words(passages):
    with pytest.raises(ConfigError, match=f"needs passages with words in them, got {len(passages)} without"):
        build_index(passages)


@pytest.mark.parametrize("options", [{"k1": -1.0}, {"b": 1.5}, {"k1": float("nan")}, {"b": -0.1}])
def test_weights_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match="k1 must be at least 0 and b from 0 to 1"):
        Bm25(**options)


def test_many_threads_find_what_one_finds():
    queries = ["blue", "kappa", "1993 film", "they are", "born", "zyzzyva"]
    alone = [INDEX.search(query, results=3) for query in queries]
    found = []

    def search():
        found.append([INDEX.search(query, results=3) for query in queries * 20])

    threads = [threading.Thread(target=search) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone * 20] * 8


# --- what the agent reads -----------------------------------------------------------------------------


def test_the_tool_word_for_word():
    search = search_tool(INDEX, results=2)

    def run(query):
        return asyncio.run(search.run({"query": query}))

    assert run("1993") == (
        "1. Blue (film)\nBlue is a film of 1993.\n\n2. Blue (song)\nBlue is a song of 1993."
    )
    assert run("zyzzyva") == "No results for 'zyzzyva'. Try other words, fewer of them, or a name."
    with pytest.raises(ToolError, match="holds no word"):
        run("?")
    assert (search.name, search.evidence, search.method) == ("search", True, False)
    assert search_tool(INDEX, name="look_up").name == "look_up"
    with pytest.raises(ConfigError, match="results must be at least 1"):
        search_tool(INDEX, results=0)


def test_long_queries_are_shown_in_part():
    assert (
        listing("x" * 500, ()) == f"No results for '{'x' * 100}…'. Try other words, fewer of them, or a name."
    )


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=20), st.integers(500, 10_000))
def test_what_is_shown_stays_within_the_limit_and_shows_every_passage(lengths, limit):
    hits = [Hit(number=n, passage=Passage(f"T{n}", "x" * size), score=1.0) for n, size in enumerate(lengths)]
    told = listing("q", hits, limit=limit)
    assert len(told) <= limit
    assert all(f"{rank}. T{rank - 1}\n" in f"{told}\n" for rank in range(1, len(hits) + 1))
    if sum(lengths) == 0:
        assert "…" not in told
