"""The requests that probes send; equal ones are sent once, so that many probes cost few tokens."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from msgspec import json

from wellspoken.proxy.doctor.probe import ProbeContext, ProbeRequest, Requests, Unclear

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
QUESTION = "Repeat this and nothing else: Hello world! café 😀 done."
PROMPT = "Once upon a time"
# vLLM refuses n above 1 with temperature 0.
SAMPLED: dict[str, Any] = {"max_tokens": 8, "temperature": 1}
TOKENS = 24  # of most answers, at most
FEW = 3
STRUCTURED = 96  # of a call, or of JSON
K = 3  # alternatives
NAMED, LIKELY = "get_time", "get_day"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": NAMED,
        "description": "Tells the time in a time zone.",
        "parameters": {
            "type": "object",
            "properties": {"tz": {"type": "string", "enum": ["UTC", "CET"]}},
            "required": ["tz"],
            "additionalProperties": False,
        },
    },
}
OTHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": LIKELY,
        "description": "Tells the day of the week.",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}
CITIES = ("Rome", "Oslo")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": list(CITIES)}},
    "required": ["city"],
    "additionalProperties": False,
}
NULLED = (
    "frequency_penalty", "logit_bias", "logprobs", "metadata", "n", "parallel_tool_calls",
    "presence_penalty", "response_format", "seed", "stop", "store", "stream", "stream_options",
    "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user",
)  # fmt: skip
"""Parameters of which OpenAI says that null is as good as none."""


def user(content: Any) -> list[dict[str, Any]]:
    """Return a conversation of one message."""
    return [{"role": "user", "content": content}]


def chat(context: ProbeContext, *, nth: int = 0, leave: bool = False, **more: Any) -> ProbeRequest:
    """Return a chat request, greedy and short; `more` adds keys or replaces them."""
    body = {"model": context.model, "messages": user(QUESTION), "temperature": 0}
    if "max_completion_tokens" not in more:
        body["max_tokens"] = TOKENS
    return ProbeRequest(CHAT, json.encode({**body, **more}), nth=nth, leave=leave)


def completion(context: ProbeContext, **more: Any) -> ProbeRequest:
    """Return a completions request."""
    body = {"model": context.model, "prompt": PROMPT, "temperature": 0, "max_tokens": 8}
    return ProbeRequest(COMPLETIONS, json.encode({**body, **more}))


def asking(*nth: int, **more: Any) -> Requests:
    """Return what makes chat requests, one or as many as `nth` tells apart; `more` as of `chat`."""
    return lambda context: [chat(context, nth=each, **more) for each in nth or (0,)]


plain, twice, four = asking(), asking(0, 1), asking(3, 4, 5, 6)
stream = asking(stream=True)
SCORED: dict[str, Any] = {"logprobs": True, "top_logprobs": K}
logprobs = asking(**SCORED)
seed = asking(0, 1, seed=7, temperature=1)
null_parameters = asking(**dict.fromkeys(NULLED))
_PARTS = [{"type": "text", "text": part} for part in ("Say", "hello.")]
message_forms = asking(
    messages=[
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": _PARTS, "name": "somebody"},
    ]
)
_OFFER: dict[str, Any] = {
    "messages": user("What day is it today?"),
    "tools": [TOOL, OTHER_TOOL],
    "max_tokens": STRUCTURED,
}
tools = asking(tool_choice="required", **_OFFER)
tools_stream = asking(tool_choice="required", stream=True, **_OFFER)
one_tool = asking(tool_choice={"type": "function", "function": {"name": NAMED}}, **_OFFER)
"""To be answered with a call of the function that the question is not about."""
_FORM = {"name": "city", "strict": True, "schema": SCHEMA}
json_schema = asking(
    messages=user("Name a city, as JSON with the one key city."),
    max_tokens=STRUCTURED,
    response_format={"type": "json_schema", "json_schema": _FORM},
)


def model(context: ProbeContext) -> list[ProbeRequest]:
    """One model. Raises Unclear where none is listed."""
    if not context.listed:
        raise Unclear(f"the server does not list the model {context.model!r}")
    return [ProbeRequest(f"/v1/models/{quote(context.model, safe='')}", method="GET")]


def choose_stop(text: str) -> str:
    """Return a few characters from the middle of an answer. Raises Unclear for a short one."""
    middle = len(text) // 2
    for start in (*range(middle, len(text) - 3), *range(middle, 1, -1)):
        stop = text[start : start + 3]
        if len(stop) == 3 and stop.strip() == stop and text.find(stop) > 0:
            return stop
    raise Unclear("the plain answer is too short to choose a stop string from it")


def stop(context: ProbeContext) -> list[ProbeRequest]:
    """The plain question, to be stopped in the middle. Raises Unclear."""
    return [chat(context, stop=[choose_stop(context.text)])]


def stop_logprobs(context: ProbeContext) -> list[ProbeRequest]:
    """The same with logprobs. Raises Unclear."""
    return [chat(context, stop=[choose_stop(context.text)], **SCORED)]


def logit_bias(context: ProbeContext) -> list[ProbeRequest]:
    """A question whose answer can be nothing but token 100 again and again.

    Raises Unclear where it is not known what would be answered without.
    """
    if not context.text:
        raise Unclear("the plain answer is empty, so that no effect could be seen")
    return [chat(context, logit_bias={"100": 100}, max_tokens=FEW)]


def disconnect(context: ProbeContext) -> list[ProbeRequest]:
    """The plain question, a long answer that is not waited for, and the plain one again."""
    long = chat(
        context, leave=True, stream=True, messages=user("Count from 1 to 300."), max_tokens=400
    )
    return [chat(context), long, chat(context, nth=2)]


def embeddings(context: ProbeContext) -> list[ProbeRequest]:
    """Two texts to embed."""
    body = {"model": context.model, "input": ["Hello", "Good day"], "encoding_format": "float"}
    return [ProbeRequest("/v1/embeddings", json.encode(body))]
