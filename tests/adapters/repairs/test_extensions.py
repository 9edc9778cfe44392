"""Contract rule 9: what is beside OpenAI's keys stays, goes or has one name, and is counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.answers import (
    Json,
    Said,
    ask,
    body,
    choice,
    chunk,
    completion,
    counted,
    end,
    message,
    role,
    say,
    stream,
)
from tests.corpus import fixtures
from tests.fold import payloads
from tests.replay import SPLITS, exchange
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.translate import StreamTranslator


def test_reasoning_is_dropped_where_no_extensions_are_wanted() -> None:
    for name, more in (("reasoning_content", {}), ("reasoning", {"x": 1})):
        given = completion(choice(message=message("Hi", **{name: "Hm."}, **more)))
        said = translated("none", frozenset(), given)
        assert said.message == {"role": "assistant", "content": "Hi", "refusal": None}
        assert said.repairs["extra_field_dropped"] == 1 + len(more)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking", "reasoning_text"])
def test_reasoning_has_one_name(name: str) -> None:
    for said in (
        body(completion(choice(message=message("Hi", **{name: "Hm."})))),
        stream([role(), chunk({name: "Hm"}), chunk({name: "."}), say("Hi"), end()]),
    ):
        assert said.message["reasoning_content"] == "Hm."
        assert said.message["content"] == "Hi"
        assert ("reasoning_renamed" in said.repairs) == (name != "reasoning_content")


def translated(extensions: Any, keep: frozenset[str], given: Json, **request: Any) -> Said:
    """Translate a body with extensions other than the default ones."""
    from wellspoken.adapters.translate import translate_body

    asked = exchange(ask(**request), extensions=extensions, keep=keep)
    answer = translate_body(asked, 200, "application/json", json.dumps(given).encode())
    found = json.loads(answer.body)
    return Said(found, answer.body, answer.status, asked.notes.counts, None, None)


KEYED = completion(
    choice(
        message=message("Hi", reasoning="Hm.", vendor={"a": 1}),
        stop_reason="###",
        token_ids=[1],
    ),
    timings={"ms": 1},
    kv_transfer_params={"x": 1},
)


@pytest.mark.parametrize(
    ("extensions", "keep", "request_", "kept"),
    [
        ("none", (), {}, ()),
        ("known", (), {}, ("reasoning_content",)),
        ("known", (), {"return_token_ids": True}, ("reasoning_content", "token_ids")),
        ("known", (), {"timings_per_token": True}, ("reasoning_content", "timings")),
        ("known", ("stop_reason",), {}, ("reasoning_content", "stop_reason")),
        ("none", ("stop_reason",), {}, ("stop_reason",)),
        (
            "all",
            (),
            {},
            (
                "reasoning_content",
                "token_ids",
                "timings",
                "stop_reason",
                "vendor",
                "kv_transfer_params",
            ),
        ),
    ],
)
def test_extensions(
    extensions: str, keep: tuple[str, ...], request_: Json, kept: tuple[str, ...]
) -> None:
    said = translated(extensions, frozenset(keep), KEYED, **request_)
    every = ("reasoning_content", "token_ids", "timings", "stop_reason", "vendor")
    found = {key for key in (*every, "kv_transfer_params") if f'"{key}"'.encode() in said.raw}
    assert found == set(kept)
    dropped = len(every) + 1 - len(kept)
    assert said.repairs.get("extra_field_dropped", 0) == dropped  # nothing vanishes uncounted
    assert ("stop_reason_folded" in said.repairs) == ("stop_reason" not in kept)


@pytest.mark.parametrize("key", ["stop_reason", "matched_stop"])
def test_a_streamed_stop_reason_folds_into_the_finish_reason(key: str) -> None:
    last, text = end(), say("Hi")
    for part in (text, last):
        part["choices"][0][key] = "###"
    said = stream([role(), text, last])
    assert key.encode() not in said.raw
    assert said.repairs == {"stop_reason_folded": 2, "extra_field_dropped": 2}
    last["choices"][0][key] = None
    said = stream([role(), say("Hi"), last])
    assert said.repairs == {"null_key_omitted": 1}


def test_where_an_extension_stood_it_stays() -> None:
    said = translated("all", frozenset(), KEYED)
    assert said.answer["timings"] == {"ms": 1}
    assert said.choice["stop_reason"] == "###"
    assert said.message["vendor"] == {"a": 1}
    assert list(said.choice)[:4] == ["index", "message", "logprobs", "finish_reason"]


def test_prompt_logprobs_pass_exactly() -> None:
    given = completion()
    given["prompt_logprobs"] = [None, {"7": {"logprob": -0.10, "rank": 1, "decoded_token": "é"}}]
    said = body(given, ask(prompt_logprobs=1))
    assert said.answer["prompt_logprobs"] == given["prompt_logprobs"]
    assert said.repairs == {}
    assert "prompt_logprobs" not in body(given).answer


def test_extras_that_came_too_late_are_counted() -> None:
    timings = {**counted(), "timings": {"predicted_n": 1}}
    request = ask(timings_per_token=True)
    said = stream([role(), say("Hi"), end(), timings], request)
    assert said.repairs["extra_field_dropped"] == 1


def test_a_messages_own_keys_elsewhere_are_dropped_and_counted() -> None:
    for key in ("reasoning_content", "audio", "refusal"):
        odd = {key: {"a": 1}}
        for answer in (completion(choice(x=None, **odd)), completion(**odd)):
            said = body(answer)
            assert said.repairs["extra_field_dropped"] == 1


OF_CHOICES = {
    f.key: f.raw for f in fixtures() if f.key in ("b11549-chat_stream_usage.sse",
                                                  "b11549-chat_stream_n2_usage.sse")
}  # fmt: skip
"""Captured from llama.cpp b11549, which was asked for usage; the client of these tests was not."""


def unasked(raw: bytes, split: str, **facts: Any) -> tuple[Exchange, list[Json]]:
    """Return what a client gets that wants no usage of a stream that was asked for it."""
    facts = {"extensions": "all", "asks_usage": True, **facts}
    asked = replace(exchange(ask(stream=True, n=raw.count(b'"finish_reason":"'))), **facts)
    translator = StreamTranslator(asked)
    out = b"".join(map(translator.feed, SPLITS[split](raw))) + translator.close()
    return asked, [json.loads(data) for data in payloads(out) if data != b"[DONE]"]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("raw", OF_CHOICES.values(), ids=OF_CHOICES)
def test_what_came_on_a_usages_chunk_goes_with_the_last_one_that_the_client_gets(
    raw: bytes, split: str
) -> None:
    asked, chunks = unasked(raw, split)
    assert not any("usage" in part or not part["choices"] for part in chunks)
    ends = [part for part in chunks if part["choices"][0]["finish_reason"]]
    assert len(ends) == raw.count(b'"finish_reason":"') == raw.count(b'"predicted_n"')
    assert [part for part in chunks if "timings" in part] == ends
    assert "extra_field_dropped" not in asked.notes.counts


@pytest.mark.parametrize(("keep", "kept"), [(frozenset(["timings"]), 1), (frozenset(), 0)])
def test_one_that_the_route_keeps_does_too(keep: frozenset[str], kept: int) -> None:
    raw = OF_CHOICES["b11549-chat_stream_usage.sse"]
    _, chunks = unasked(raw, "CRLF", extensions="known", keep=keep)
    assert sum("timings" in part for part in chunks) == kept


def test_an_end_waits_for_nothing_else() -> None:
    """A choice's end has only what came with its own chunk or right behind it."""
    asked = replace(exchange(ask(stream=True, n=2)), extensions="all", asks_usage=True)
    translator = StreamTranslator(asked)
    out = [
        translator.feed(b"data: " + json.dumps(part).encode() + b"\n\n")
        for part in (say("Hi"), end(), say("Ho", index=1), end(index=1), {**counted(), "x": 1})
    ]
    assert out[1] == out[3] == out[4] == b"" and b"Ho" in out[2]
    ends = list(payloads(translator.close()))
    assert [json.loads(end).get("x") for end in ends[:2]] == [None, 1]
    assert [b'"stop"' in end for end in ends] == [True, True, False]
