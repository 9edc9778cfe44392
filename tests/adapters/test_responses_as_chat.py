"""Every fixture of a chat answer, as a response: it says what the chat answer of it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.conformance.responses import comparable_response, fold_response_stream
from tests.corpus import Fixture, fixtures
from tests.replay import SPLITS, exchange, surroundings
from tests.response_facts import facts
from tests.response_fold import fold_response
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.tokens.tokenize import NOTHING
from wellspoken.adapters.translate import StreamTranslator

Json = dict[str, Any]
Read = Callable[[bytes], Iterable[bytes]]

ALL = fixtures()
ANSWERED = [fixture for fixture in ALL if fixture.status < 400]
STREAMED = [fixture for fixture in ANSWERED if fixture.streamed]

REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


def name_of(fixture: Fixture) -> str:
    return fixture.name


def chat_exchange(fixture: Fixture, streams: bool) -> Exchange:
    """Return the exchange of what of the fixture's request a response's can ask for."""
    request = {k: v for k, v in fixture.request.items() if not k.startswith("stream")}
    if streams:
        request |= {"stream": True, "stream_options": {"include_usage": True}}
    asked = exchange(request, **surroundings(fixture))
    return replace(asked, n=1, functions=False, service_tier=False, switches=frozenset())


def response_exchange(fixture: Fixture, streams: bool, **more: Any) -> Exchange:
    """Return the same as the exchange of a request to /v1/responses."""
    asked = chat_exchange(fixture, streams)
    told = facts(top_logprobs=b"%d" % asked.k)
    return replace(asked, response=told, **more)


def translate(
    fixture: Fixture, asked: Exchange, read: Read = lambda raw: [raw]
) -> tuple[bytes, StreamTranslator]:
    """Return what the client gets, b"" for a failure at once, and the translator."""
    translator = StreamTranslator(asked, fixture.dialect, fold=not asked.stream)
    if fixture.streamed and fixture.status < 400:
        out = b"".join([*map(translator.feed, read(fixture.raw)), translator.close()])
    else:
        out = translator.whole(fixture.status, fixture.content_type, fixture.raw)
    if translator.missing_counts() is not None:
        out += translator.add_counts(NOTHING)
    if not asked.stream and translator.fault is None:
        return translator.answer().body, translator
    return out, translator


def said_in_chat(body: Json) -> Json:
    """Return what a chat.completion says."""
    choice = body["choices"][0]
    message = choice["message"]
    scores = (choice["logprobs"] or {}).get("content") or []
    rows = [*scores, *(row for entry in scores for row in entry["top_logprobs"])]
    for row in rows:
        row["bytes"] = row["bytes"] or []
    calls = [(call["id"], call["function"]) for call in message.get("tool_calls", ())]
    return {
        "text": message["content"] or "",
        "refusal": message["refusal"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": [(id, call["name"], call["arguments"]) for id, call in calls],
        "logprobs": scores,
        "why": REASONS.get(choice["finish_reason"]),
        "usage": [body["usage"][key] for key in ("prompt_tokens", "completion_tokens")],
    }


def said_in_response(response: Json) -> Json:
    """Return what a response says."""
    items = response["output"]
    contents = [part for item in items for part in item.get("content", ())]

    def joined(kind: str, key: str) -> str:
        return "".join(part[key] for part in contents if part["type"] == kind)

    return {
        "text": joined("output_text", "text"),
        "refusal": joined("refusal", "refusal"),
        "reasoning": joined("reasoning_text", "text"),
        "calls": [(x["call_id"], x["name"], x["arguments"]) for x in items if "call_id" in x],
        "logprobs": [row for part in contents for row in part.get("logprobs", ())],
        "why": (response["incomplete_details"] or {}).get("reason"),
        "usage": [response["usage"][key] for key in ("input_tokens", "output_tokens")],
    }


@pytest.mark.parametrize("streams", [False, True], ids=["body", "stream"])
@pytest.mark.parametrize("fixture", ALL, ids=name_of)
def test_a_response_says_what_the_chat_answer_says(fixture: Fixture, streams: bool) -> None:
    chat, as_chat = translate(fixture, chat_exchange(fixture, False))
    out, translator = translate(fixture, response_exchange(fixture, streams))
    if as_chat.fault is not None:
        assert translator.fault is not None
        if translator.started:
            assert fold_response(out)["status"] == "failed"
        told = (translator.fault.status, translator.fault.code, translator.fault.retry)
        assert told == (as_chat.fault.status, as_chat.fault.code, as_chat.fault.retry)
        return
    assert translator.fault is None and translator.done
    response = fold_response(out) if streams else json.loads(out)
    assert said_in_response(response) == said_in_chat(json.loads(chat))


@pytest.mark.parametrize("fixture", ANSWERED, ids=name_of)
def test_body_and_stream_are_one_response(fixture: Fixture) -> None:
    body, whole = translate(fixture, response_exchange(fixture, False))
    stream, streamed = translate(fixture, response_exchange(fixture, True))
    if whole.fault is not None:
        assert streamed.fault == whole.fault
        return
    assert fold_response(stream) == json.loads(body)
    assert comparable_response(fold_response_stream(stream)) == comparable_response(
        json.loads(body)
    )


@pytest.mark.no_cover  # the same bytes once more
@pytest.mark.parametrize("streams", [False, True], ids=["body", "stream"])
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("fixture", STREAMED, ids=name_of)
def test_any_split_gives_the_same_response(fixture: Fixture, split: str, streams: bool) -> None:
    asked, again = (response_exchange(fixture, streams) for _ in range(2))
    whole, translator = translate(fixture, asked)
    pieces, other = translate(fixture, again, SPLITS[split])
    assert (pieces, other.fault) == (whole, translator.fault)
    assert again.notes == asked.notes or again.notes.counts == asked.notes.counts
