"""A fixture's question asked as a response, and what the client of that gets for its answer."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tests.corpus import OWN, Fixture
from tests.replay import NOW, Outcome, surroundings
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests.responses.as_chat import exchange_for_response, make_chat
from wellspoken.adapters.requests.responses.renamed import rename_fault
from wellspoken.adapters.requests.responses.response_bounds import check_response
from wellspoken.adapters.requests.responses.response_request import parse_response
from wellspoken.adapters.tokens.tokenize import NOTHING
from wellspoken.adapters.translate import StreamTranslator, fault_answer

Json = dict[str, Any]

SUFFIX = "0123456789abcdef"
SAME = (
    "frequency_penalty",
    "logit_bias",
    "metadata",
    "model",
    "parallel_tool_calls",
    "presence_penalty",
    "seed",
    "service_tier",
    "stop",
    "store",
    "temperature",
    "top_logprobs",
    "top_p",
    "user",
)
"""Keys of a chat request that a response's has under the same name."""


def as_response_request(chat: Json, *, stream: bool) -> Json:
    """Return the request for a response that asks the same as a chat request; n is 1."""
    same = (*SAME, *(key for key in chat if key not in OWN))
    asked: Json = {key: chat[key] for key in same if chat.get(key) is not None}
    texts = [m for m in chat["messages"] if isinstance(m["content"], str)]
    asked["input"] = [{"role": m["role"], "content": m["content"]} for m in texts] or "Hi"
    limit = chat.get("max_completion_tokens") or chat.get("max_tokens")
    if limit is not None:
        asked["max_output_tokens"] = limit
    functions = [t["function"] for t in chat.get("tools") or ()] or chat.get("functions")
    if functions:
        asked["tools"] = [{"type": "function", **function} for function in functions]
    choice = chat.get("tool_choice")
    if isinstance(choice, dict):
        asked["tool_choice"] = {"type": "function", "name": choice["function"]["name"]}
    elif choice is not None:
        asked["tool_choice"] = choice
    wanted = chat.get("response_format")
    if wanted is not None:
        asked["text"] = {"format": {"type": wanted["type"], **wanted.get("json_schema", {})}}
    if chat.get("reasoning_effort") is not None:
        asked["reasoning"] = {"effort": chat["reasoning_effort"]}
    if chat.get("logprobs"):
        asked["include"] = ["message.output_text.logprobs"]
    return asked | ({"stream": True} if stream else {})


def response_exchange(asked: Json, **more: Any) -> Exchange:
    """Return the exchange of a request for a response, its ids fixed."""
    ids = itertools.count(1)
    request = parse_response(json.dumps(asked).encode())
    check_response(request, False)
    stored = asked.get("store") is not False
    chat = make_chat(request, [], {}, suffix=SUFFIX, clock=lambda: NOW + 1, stored=stored)
    return exchange_for_response(chat, now=NOW, new_id=lambda: f"made{next(ids):08d}", **more)


def replay_as_response(fixture: Fixture, asked: Json) -> Outcome:
    """Translate a fixture's answer for a client that asked for a response, whole or streamed."""
    made = response_exchange(asked, **surroundings(fixture))
    stream = bool(asked.get("stream"))
    translator = StreamTranslator(made, fixture.dialect, fold=not stream)
    if fixture.streamed and fixture.status < 400:
        out = translator.feed(fixture.raw) + translator.close()
    else:
        out = translator.whole(fixture.status, fixture.content_type, fixture.raw)
    if translator.missing_counts() is not None:
        out += translator.add_counts(NOTHING)
    if stream and (out or translator.fault is None):
        return Outcome(200, out, None, None, made.notes.counts)
    fault = translator.fault
    assert made.response is not None
    answer = (
        translator.answer() if fault is None else fault_answer(rename_fault(fault, made.response))
    )
    return Outcome(answer.status, answer.body, answer.retry, None, made.notes.counts)
