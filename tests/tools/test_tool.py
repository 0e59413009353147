import asyncio
import threading
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from steprl.errors import ConfigError, EnvError, ToolError
from steprl.tools import Tool, tool


def run(chosen: Tool, **arguments: Any) -> str:
    return asyncio.run(chosen.run(arguments))


def refusal(chosen: Tool, **arguments: Any) -> str:
    with pytest.raises(ToolError) as caught:
        run(chosen, **arguments)
    return str(caught.value)


@tool
def search(query: str, limit: int = 3, order: Literal["date", "rank"] = "rank") -> list[str]:
    """Search the
    archive.

    Longer story.

    Args:
        query: what to look for,
            in a few words
        limit (int): how many at most

    Returns:
        Titles: never more than the limit.
    """
    return [f"{query} {i} by {order}" for i in range(limit)]


@tool
async def wait(seconds: float) -> None:
    """Wait."""
    await asyncio.sleep(seconds)


@dataclass
class Point:
    x: int
    y: int


@tool
def odd_names(copy: int, model_config: int, json: int, _low: int = 0) -> int:
    """Add."""
    return copy + model_config + json + _low


def test_the_spec_comes_from_signature_and_docstring():
    assert search.name == "search"
    assert search.description == "Search the archive. Longer story."
    assert search.spec.parameters == {
        "type": "object",
        "properties": {
            "query": {"description": "what to look for, in a few words", "type": "string"},
            "limit": {"description": "how many at most", "type": "integer", "default": 3},
            "order": {"enum": ["date", "rank"], "type": "string", "default": "rank"},
        },
        "required": ["query"],
    }


def test_a_tool_is_still_the_function():
    assert search("cats", limit=1) == ["cats 0 by rank"]


def test_options():
    @tool(name="find", description="Find it.", max_output=5)
    def search(query: str) -> str:
        return query

    assert (search.name, search.description) == ("find", "Find it.")
    assert run(search, query="1234567") == "12345… [cut: 2 of 7 characters]"


def test_that_results_are_evidence_is_not_told_to_the_model():
    def look(page: str) -> str:
        """Look at a page."""
        return page

    plain, evidence = tool(look), tool(evidence=True)(look)
    assert (plain.evidence, evidence.evidence) == (False, True)
    assert evidence.spec == plain.spec and "evidence" not in str(evidence.spec.to_json())
    assert run(evidence, page="a") == run(plain, page="a") == "a"


def test_defaults_are_the_functions_own():
    assert run(search, query="a", limit=1) == '["a 0 by rank"]'


def test_parameters_may_have_any_name():
    assert list(odd_names.spec.parameters["properties"]) == ["copy", "model_config", "json", "_low"]
    assert run(odd_names, copy=1, model_config=2, json=3, _low=4) == "10"


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ({}, ["search: argument 'query' is missing", "Arguments: query (string), limit (integer, optional)"]),
        ({"query": "a", "limt": 1}, ["unknown argument 'limt' (did you mean 'limit'?)"]),
        ({"query": 5}, ["argument 'query' should be a valid string, got 5"]),
        ({"query": "a", "limit": "3"}, ["argument 'limit' should be a valid integer, got '3'"]),
        ({"query": "a", "limit": True}, ["argument 'limit' should be a valid integer, got True"]),
        (
            {"query": "a", "order": "size"},
            ["should be 'date' or 'rank', got 'size'", 'one of "date", "rank"'],
        ),
        ({"query": ["x" * 500]}, ["got ['xxx", "…"]),
        ({"query": "\ud800"}, ["search: the arguments: Invalid JSON"]),
        ({"query": {1, 2}}, ["search: the arguments are not JSON"]),
    ],
)
def test_wrong_arguments_tell_the_agent_what_to_write(arguments, texts):
    message = refusal(search, **arguments)
    assert all(text in message for text in texts), message
    assert len(message) < 400


@given(st.dictionaries(st.text(max_size=8), st.none() | st.integers() | st.text(max_size=8), max_size=3))
def test_any_arguments_run_or_are_refused(arguments):
    try:
        checked = search.arguments.check("search", {"query": "a", **arguments})
    except ToolError as error:
        assert str(error).startswith("search: ")
    else:
        assert checked == {"query": "a", **arguments}


def test_json_becomes_the_annotated_types():
    seen: list[Any] = []

    @tool
    def take(
        at: Point, pairs: list[tuple[int, str]], n: Annotated[int, Field(ge=1, description="count")]
    ) -> None:
        """Take."""
        seen.append((at, pairs, n))

    assert take.spec.parameters["properties"]["n"] == {
        "description": "count",
        "minimum": 1,
        "type": "integer",
    }
    assert run(take, at={"x": 1, "y": 2}, pairs=[[1, "a"]], n=1) == "ok"
    assert seen == [(Point(1, 2), [(1, "a")], 1)]
    assert "argument 'n' should be greater than or equal to 1, got 0" in refusal(
        take, at={"x": 1, "y": 2}, pairs=[], n=0
    )
    assert "argument 'at.y' is missing" in refusal(take, at={"x": 1}, pairs=[], n=1)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is\n", "as it is\n"),
        (None, "ok"),
        (7, "7"),
        (True, "true"),
        ({"a": [1, None], "ß": 0.5}, '{"a":[1,null],"ß":0.5}'),
        (Point(1, 2), '{"x":1,"y":2}'),
        ({"b", "a", "c"}, '["a","b","c"]'),
    ],
)
def test_results_become_text(result, text):
    @tool
    def give() -> Any:
        """Give."""
        return result

    assert run(give) == text


def test_a_result_that_json_cannot_hold_is_the_authors_mistake():
    @tool
    def give() -> Any:
        """Give."""
        return object()

    with pytest.raises(EnvError, match="tool 'give' returned a object"):
        run(give)


def raising(error: Exception) -> Tool:
    @tool(max_output=40)
    def fail() -> None:
        """Fail."""
        raise error

    return fail


def test_exceptions_become_text_without_traceback():
    assert refusal(raising(KeyError("Oslo"))) == "KeyError: 'Oslo'"
    assert refusal(raising(ToolError("closed on Sundays"))) == "closed on Sundays"
    assert refusal(raising(ValueError("x" * 50))) == f"ValueError: {'x' * 28}… [cut: 22 of 62 characters]"


def test_stop_iteration_does_not_hang():
    assert refusal(raising(StopIteration("empty"))) == "StopIteration: empty"


def test_exceptions_of_async_tools_become_text():
    @tool
    async def fail() -> None:
        """Fail."""
        raise RuntimeError("no luck")

    assert refusal(fail) == "RuntimeError: no luck"


def test_an_environments_own_failure_is_not_told_to_the_agent():
    with pytest.raises(EnvError, match="server gone"):
        run(raising(EnvError("server gone")))


@given(st.text(max_size=60), st.integers(1, 50))
def test_only_long_output_is_cut_and_what_is_left_is_its_beginning(text, limit):
    @tool(max_output=limit)
    def give() -> str:
        """Give."""
        return text

    shown = give._cut(give._text(give()))
    if len(text) <= limit:
        assert shown == text
    else:
        assert shown == text[:limit] + f"… [cut: {len(text) - limit:,} of {len(text):,} characters]"


def test_output_is_cut_at_ten_thousand_characters_by_default():
    @tool
    def give() -> str:
        """Give."""
        return "x" * 22_345

    assert run(give) == "x" * 10_000 + "… [cut: 12,345 of 22,345 characters]"


def test_sync_tools_leave_the_event_loop_free():
    release = threading.Event()

    @tool
    def block() -> bool:
        """Block."""
        return release.wait(5)

    async def both():
        blocked = asyncio.create_task(block.run({}))
        await wait.run({"seconds": 0})
        release.set()
        return await blocked

    assert asyncio.run(both()) == "true"


class Counter:
    def __init__(self) -> None:
        self.count = 0

    @tool
    def add(self, n: int) -> "Counter":
        """Add."""
        self.count += n
        return str(self.count)  # type: ignore[return-value]

    @tool
    async def later(self) -> int:
        """Later."""
        return self.count


def test_methods_are_bound_where_they_are_accessed():
    first, second = Counter(), Counter()
    assert list(Counter.add.spec.parameters["properties"]) == ["n"]
    assert run(first.add, n=2) == "2" and first.add(3) == "5"
    assert run(first.later) == "5" and run(second.later) == "0"
    assert first.add.bind(second)(0) == "5"  # already bound
    with pytest.raises(EnvError, match="tool 'add' is a method"):
        run(Counter.add, n=1)


def test_a_plain_tool_as_class_attribute_stays_itself():
    class Holder:
        find = search

    assert Holder().find is search


def untyped(x):
    """Do."""


def variadic(*xs: int) -> None:
    """Do."""


def positional(x: int, /) -> None:
    """Do."""


def undocumented(x: int) -> None: ...


def misdocumented(quary: str) -> None:
    """Do.

    Args:
        query: what
    """


def unknowable(x: threading.Event) -> None:
    """Do."""


def undefined(x: "Nowhere") -> None:  # noqa: F821
    """Do."""


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (untyped, "parameter 'x' has no type"),
        (variadic, r"'\*xs: int' cannot be passed by name"),
        (positional, "cannot be passed by name"),
        (undocumented, "has no description"),
        (misdocumented, "unknown argument 'query'. Did you mean 'quary'?"),
        (unknowable, "cannot be told to a model"),
        (undefined, "cannot be told to a model.*Nowhere"),
        (print, "@tool needs a function"),
        (lambda: None, "tool name '<lambda>'"),
    ],
)
def test_a_function_that_makes_no_tool_is_refused(function, reason):
    with pytest.raises(ConfigError, match=reason):
        tool(function)


def test_options_are_checked():
    with pytest.raises(ConfigError, match="tool name 'two words'"):
        tool(name="two words")(search.call)
    with pytest.raises(ConfigError, match="max_output must be at least 1"):
        tool(max_output=0)(search.call)


@tool
def leaves(how: str) -> None:
    """Exit, as argparse does, or claim to be cancelled."""
    raise SystemExit(2) if how == "exit" else asyncio.CancelledError


@tool
async def gives_up(how: str) -> None:
    """Exit, or await what it cancelled itself."""
    if how == "exit":
        raise SystemExit(2)
    inner = asyncio.ensure_future(asyncio.sleep(10))
    inner.cancel()
    await inner


@pytest.mark.parametrize("chosen", [leaves, gives_up])
def test_a_tool_that_exits_or_cancels_itself_has_failed(chosen: Tool) -> None:
    assert refusal(chosen, how="exit") == "SystemExit: 2"
    assert refusal(chosen, how="cancel").startswith("CancelledError")


def test_a_call_that_is_cancelled_from_outside_is_cancelled() -> None:
    @tool
    async def sleeps() -> None:
        """Sleep."""
        await asyncio.sleep(10)

    async def cancel() -> None:
        running = asyncio.ensure_future(sleeps.run({}))
        await asyncio.sleep(0)
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@tool
def paint(colour: Colour, width: int | list[int] = 1, point: Point | int = 0) -> str:
    """Paint.

    Args:
        colour: what with
        Note: it dries slowly
        width: how wide

    Note: prose.
    """
    return colour.value


def test_wrong_arguments_are_named_without_the_types_that_were_tried() -> None:
    text = refusal(paint, colour="green", width=["x"], point={"x": 1, "y": "2"})
    assert 'colour (one of "red", "blue")' in text
    assert "argument 'width' should be a valid integer" in text
    assert "argument 'width.0' should be a valid integer" in text
    assert "argument 'point.y' should be a valid integer" in text and "Point" not in text
    assert "argument 'point.y' is missing" in refusal(paint, colour="red", point={"x": 1})


def test_a_remark_among_the_arguments_is_not_an_argument() -> None:
    described = {key: value.get("description") for key, value in paint.spec.parameters["properties"].items()}
    assert described["colour"] == "what with Note: it dries slowly" and described["width"] == "how wide"
