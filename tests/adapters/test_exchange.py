"""What a decoded request says of the exchange: everything an answer is made with."""

from __future__ import annotations

from typing import Any

from tests.adapters.requests.test_chat_request import TOOL, body
from wellspoken.adapters.requests.chat import decode_chat, exchange_for
from wellspoken.adapters.requests.shapes import ALL_ALTERNATIVES
from wellspoken.adapters.tokens.table import TokenTable


def exchange(**fields: Any) -> Any:
    request = decode_chat(body(**fields), bounds="backend")
    return exchange_for(request, now=7, new_id=lambda: "fresh")


def test_the_exchange_of_a_bare_request() -> None:
    made = exchange()
    assert (made.model, made.now, made.new_id()) == ("m", 7, "fresh")
    assert (made.stream, made.include_usage, made.logprobs, made.k, made.n) == (
        False,
        False,
        False,
        0,
        1,
    )
    assert (made.max_tokens, made.stops, made.tools) == (None, (), ())
    assert not (made.forced_tool or made.functions or made.service_tier or made.switches)
    assert made.extensions == "known" and made.keep == frozenset()
    assert made.prompt_size == 2


def test_the_exchange_of_a_full_request() -> None:
    request = decode_chat(
        body(
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,
            top_logprobs=5,
            n=2,
            max_tokens=9,
            max_completion_tokens=5,
            stop=["a", ""],
            service_tier="auto",
            tools=[TOOL, {"type": "custom", "custom": {"name": "c"}}],
            tool_choice={"type": "function", "function": {"name": "f"}},
            return_token_ids=True,
            prompt_logprobs=0,
            top_k=None,
            ignore_eos=False,
            oai_compat=True,
        )
    )
    tokens = TokenTable()
    made = exchange_for(
        request,
        now=1,
        new_id=lambda: "x",
        tokens=tokens,
        extensions="all",
        keep=frozenset({"stop_reason"}),
    )
    assert made.stream and made.include_usage and made.logprobs and made.service_tier
    assert (made.k, made.n, made.max_tokens, made.stops) == (5, 2, 5, ("a",))
    assert (made.tools, made.forced_tool, made.functions) == (("f",), True, False)
    assert made.switches == {"return_token_ids", "prompt_logprobs"}
    assert made.tokens is tokens
    assert made.extensions == "all"
    assert made.keep == {"stop_reason"}


def test_the_exchange_of_functions() -> None:
    made = exchange(functions=[{"name": "f"}, {}], function_call={"name": "f"})
    assert (made.tools, made.forced_tool, made.functions) == (("f",), True, True)
    assert not exchange(functions=[{"name": "f"}], function_call="auto").forced_tool
    assert not exchange(tools=[TOOL], tool_choice={"type": "allowed_tools"}).forced_tool
    custom = {"type": "custom", "custom": {"name": "c"}}
    assert exchange(tools=[custom], tool_choice=custom).forced_tool


def test_limits_and_alternatives_that_mean_all() -> None:
    assert exchange(max_tokens=-1).max_tokens is None
    assert exchange(max_tokens=8).max_tokens == 8
    assert exchange(logprobs=True, top_logprobs=-1).k == ALL_ALTERNATIVES
    assert exchange(stop="a").stops == ("a",)


def test_the_size_of_the_prompt_is_its_text_in_utf8() -> None:
    messages = [
        {"role": "system", "content": "caf\u00e9"},
        {"role": "user", "content": [{"type": "text", "text": "\u00e9"}, {"type": "image_url"}]},
        {"role": "assistant", "content": None},
    ]
    assert exchange(messages=messages).prompt_size == 7
