"""A stored answer: with its request it becomes what the proxy answers, else all it holds."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any
from urllib import request as urllib

import pytest

from tests.conformance import Facts, Request, check_body
from tests.conformance.completions import check_completion_body
from tests.corpus import Fixture, fixtures, text_fixtures
from tests.reading import facts_of
from tests.replay import NOW, body
from wellspoken.adapters.exchange import SWITCHED
from wellspoken.adapters.servers import registry
from wellspoken.proxy.transfer.converter import NO_MODEL, Converter
from wellspoken.proxy.transfer.jsonl import RejectedLine


def bodies(given: list[Fixture]) -> list[Fixture]:
    """Those of whole answers, as they are without a configured tokenizer or `recover`."""
    return [f for f in given if not (f.streamed or f.for_stream or f.vocabulary or f.recover)]


CHAT, TEXT = bodies(fixtures()), bodies(text_fixtures())
NATIVES = ("native/", "completions/llamacpp/b4240-v1c_native")  # they become chat here
BODIES = CHAT + [f for f in TEXT if not f.name.startswith(NATIVES)]
ANSWERED = [f for f in CHAT if f.status < 300]
SWITCHES = frozenset(SWITCHED.values())


def converter(adapter: str = "auto", *, chat: bool = False) -> Converter:
    """A converter with a fixed clock and ids counted from 1, as the fixtures' outputs have them."""
    ids = itertools.count(1)
    return Converter(
        now=NOW,
        new_id=lambda: f"made{next(ids):08d}",
        backend=registry.find(adapter),
        chat=chat,
    )


def converted(line: Any, **how: Any) -> Any:
    """Convert a line, given as bytes or as what it holds."""
    data = line if isinstance(line, bytes) else json.dumps(line).encode()
    return json.loads(converter(**how).convert(data).line)


def rejected(line: Any, **how: Any) -> str:
    """Return why a line is rejected."""
    with pytest.raises(RejectedLine) as caught:
        converted(line, **how)
    return str(caught.value)


def chat_answer(**more: Any) -> dict[str, Any]:
    """A conforming chat completion, its envelope changed by `more`."""
    message = {"role": "assistant", "content": "Hi", "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    envelope = {"id": "chatcmpl-12345678", "object": "chat.completion", "created": NOW}
    return {**envelope, "model": "m", "choices": [choice], "usage": usage, **more}


def text_answer(logprobs: Any = None, text: str = "Hi", **more: Any) -> dict[str, Any]:
    """A conforming completions answer."""
    choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    envelope = {"id": "cmpl-12345678", "object": "text_completion", "created": NOW}
    return {**envelope, "model": "m", "choices": [choice], "usage": usage, **more}


def arrays(offset: int, *, echo: bool = False) -> dict[str, Any]:
    """The completions endpoint's logprobs of the tokens "H" and "i"."""
    first = (None, None) if echo else (-0.5, {"H": -0.5, "J": -2.0})
    return {
        "tokens": ["H", "i"],
        "token_logprobs": [first[0], -0.25],
        "top_logprobs": [first[1], {"i": -0.25, "o": -3.5}],
        "text_offset": [offset, offset + 1],
    }


def name_of(fixture: Fixture) -> str:
    return fixture.name


@pytest.mark.parametrize("fixture", BODIES, ids=name_of)
def test_with_its_request_it_is_what_the_proxy_answers(fixture: Fixture) -> None:
    """In both forms of a record, and with all of what wraps it."""
    wanted = json.loads(fixture.expected_path.read_bytes())
    raw = b" ".join(fixture.raw.split(b"\n"))
    request = json.dumps(fixture.request).encode()
    record = b'{"n": 7, "request": %b, "response": %b}' % (request, raw)
    batch = b'{"custom_id": "a", "request": %b, "response": {"status_code": %d, "body": %b}}'
    lines = (record, batch % (request, fixture.status, raw))
    if "error" in wanted:
        assert all(rejected(line) for line in lines)
        return
    first, second = map(converted, lines)
    assert first == {"n": 7, "request": fixture.request, "response": wanted}
    inner = {"status_code": fixture.status, "body": wanted}
    assert second == {"custom_id": "a", "request": fixture.request, "response": inner}


def all_it_holds(fixture: Fixture, data: bytes) -> Request:
    """Return the request that asked for all an answer holds."""
    choices = json.loads(data)["choices"]
    tools = [call for choice in choices for call in choice["message"].get("tool_calls") or ()]
    return replace(
        fixture.asked,
        model=None,
        logprobs=any(choice["logprobs"] for choice in choices),
        k=1 << 20,
        n=len(choices),
        tools=tuple(call["function"]["name"] for call in tools),
        forced_tool=False,
        stops=(),
        service_tier=False,
        switches=SWITCHES,
    )


def broken(fixture: Fixture, data: bytes, asked: Request) -> set[str]:
    """Return the rules that an answer breaks, the numbers of its backend among them."""
    facts: Facts | None = None
    if fixture.server != "constructed":  # of many shapes, which the reader of facts does not know
        facts = facts_of(fixture)
    return {violation.rule for violation in check_body(data, asked, facts)}


@pytest.mark.parametrize("fixture", ANSWERED, ids=name_of)
def test_without_a_request_it_conforms_with_all_it_holds(fixture: Fixture) -> None:
    """No rule is broken that the proxy's own answer keeps, and a second time changes nothing."""
    proxied = fixture.expected_path.read_bytes()
    try:
        data = converter().convert(fixture.raw.replace(b"\n", b" ")).line
    except RejectedLine:
        assert "error" in json.loads(proxied)
        return
    found = broken(fixture, data, all_it_holds(fixture, data))
    assert found <= broken(fixture, proxied, fixture.asked)
    if body(fixture.request, 200, "application/json", proxied).body == proxied:
        assert not converter().convert(data).changed


def test_a_lost_alternative_would_be_seen() -> None:
    """The check above is one that can fail: an answer with one number less breaks a rule."""
    fixture = next(f for f in ANSWERED if f.name == "vllm/0.32.0-chat_logprobs.json")
    data = converter().convert(fixture.raw).line
    asked = all_it_holds(fixture, data)
    assert broken(fixture, data, asked) == set()
    answer = json.loads(data)
    del answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"][-1]
    assert broken(fixture, json.dumps(answer).encode(), asked)


def test_a_conforming_line_stays_byte_for_byte() -> None:
    for answer in (chat_answer(), text_answer()):
        spaced = json.dumps(answer).encode()
        for line in (spaced, b'{"response": %b ,"x": 1.50}' % spaced):
            result = converter().convert(line)
            assert (result.line, result.changed, result.repairs) == (line, False, {})


def test_what_wraps_an_answer_keeps_its_spelling() -> None:
    body = json.dumps(chat_answer(id="x")).encode()
    line = b'{"z":1.50,"big":123456789012345678901234567890,"response":%b,"a":"\xc3\xa9"}' % body
    result = converter().convert(line).line
    assert result.startswith(b'{"z":1.50,"big":123456789012345678901234567890,"response":{"id":"ch')
    assert result.endswith(b',"a":"\xc3\xa9"}')


def test_the_request_says_what_was_asked() -> None:
    top = [{"token": t, "logprob": n, "bytes": None} for t, n in (("Hi", -0.5), ("Ho", -1.5))]
    entry = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": top}
    answer = chat_answer()
    answer["choices"][0]["logprobs"] = {"content": [entry], "refusal": None}

    def entries(request: Any) -> Any:
        line = {"request": request, "response": answer}
        logprobs = converted(line)["response"]["choices"][0]["logprobs"]
        return logprobs and [len(row["top_logprobs"]) for row in logprobs["content"]]

    assert entries(None) == [2]
    assert entries({"logprobs": True, "top_logprobs": 1, "stream": True}) == [1]
    assert entries({"logprobs": True}) == [0]
    assert entries({"body": {"logprobs": True, "top_logprobs": 1}, "url": "/v1/x"}) == [1]
    assert entries({"messages": []}) is None
    renamed = converted({"request": {"model": "mine", "stop": None}, "response": answer})
    assert renamed["response"]["model"] == "mine"
    stopped = converted({"request": {"stop": "i"}, "response": chat_answer()})
    assert stopped["response"]["choices"][0]["message"]["content"] == "H"


@pytest.mark.parametrize(
    ("sent", "created"),
    [(12.5, NOW), (None, NOW), (1_700_000_000, 1_700_000_000)],
)
def test_what_is_no_time_is_the_time_of_conversion(sent: float | None, created: int) -> None:
    assert converted(chat_answer(created=sent))["created"] == created


def test_what_is_no_id_is_made_and_a_missing_model_has_a_name() -> None:
    answer = chat_answer(id="", choices=chat_answer()["choices"])
    del answer["model"]
    found = converted(answer)
    assert (found["id"], found["model"]) == ("chatcmpl-made00000001", NO_MODEL)


def test_a_function_call_stays_one() -> None:
    call = {"name": "f", "arguments": "{}"}
    answer = chat_answer()
    choice = answer["choices"][0]
    choice["message"] = {"role": "assistant", "content": None, "function_call": call}
    choice["finish_reason"] = "function_call"
    found = converted(answer)["choices"][0]
    assert found["message"]["function_call"] == call
    assert found["finish_reason"] == "function_call"


# The completions endpoint


def asked_text(answer: Any, **more: Any) -> Request:
    scored = answer["choices"][0]["logprobs"] is not None
    return Request(model="m", logprobs=scored, k=1 << 20, switches=SWITCHES, **more)


@pytest.mark.parametrize("offset", [0, 31])
def test_a_completion_stays_one_and_keeps_its_offsets(offset: int) -> None:
    """Without the request nothing else tells how long the prompt was."""
    given = text_answer(arrays(offset), id="x")
    answer = converted(given)
    assert check_completion_body(json.dumps(answer).encode(), asked_text(answer)) == []
    assert answer["choices"][0]["logprobs"] == arrays(offset)
    asked = converted({"request": {"prompt": "abc", "logprobs": 1}, "response": given})
    assert asked["response"]["choices"][0]["logprobs"]["text_offset"] == [3, 4]


def test_an_echoed_prompt_is_seen_and_its_first_entry_stays_null() -> None:
    answer = converted(text_answer(arrays(0, echo=True), id="x"))
    assert answer["choices"][0]["logprobs"] == arrays(0, echo=True)


def test_chat_shaped_logprobs_of_a_completion_become_arrays() -> None:
    """llama.cpp since its pull request #11344; the inverse of what old vLLM does to chat."""
    rows = [
        {"token": token, "logprob": number, "bytes": list(token.encode()), "top_logprobs": []}
        for token, number in (("H", -0.5), ("i", -0.25))
    ]
    given = text_answer({"content": rows}, id="chatcmpl-12345678")
    answer = converted(given)
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [-0.5, -0.25]
    assert answer["id"] == "cmpl-12345678"


@pytest.mark.parametrize("given", [text_answer(arrays(9)), text_answer(arrays(9), object="x")])
def test_a_completion_becomes_a_chat_completion_on_demand(given: dict[str, Any]) -> None:
    for line in (given, {"request": {"prompt": "abc", "logprobs": 2}, "response": given}):
        found = converted(line, chat=True)
        answer = found.get("response", found)
        data = json.dumps(answer).encode()
        assert check_body(data, Request(model="m", logprobs=True, k=2)) == []
        entries = answer["choices"][0]["logprobs"]["content"]
        assert [entry["logprob"] for entry in entries] == [-0.5, -0.25]


# llama.cpp's own /completion


NATIVE = {
    "content": "Hi",
    "stop": True,
    "stop_type": "eos",
    "model": "m",
    "tokens_predicted": 2,
    "tokens_evaluated": 4,
    "completion_probabilities": [
        {
            "id": n,
            "token": token,
            "bytes": list(token.encode()),
            "logprob": number,
            "top_logprobs": [
                {"id": n, "token": token, "bytes": list(token.encode()), "logprob": number},
                {"id": 9, "token": "x", "bytes": [120], "logprob": number - 1},
            ],
        }
        for n, token, number in ((1, "H", -0.5), (2, "i", -0.25))
    ],
}  # constructed after llama.cpp's tools/server README, "POST /completion", since PR #10783


def check_native(answer: Any, k: int, alternatives: list[int]) -> None:
    """Check a conversion of `NATIVE` asked with `k`."""
    asked = Request(model=answer["model"], logprobs=True, k=k, switches=SWITCHES)
    assert check_body(json.dumps(answer).encode(), asked) == []
    (choice,) = answer["choices"]
    rows = choice["logprobs"]["content"]
    assert choice["message"]["content"] == "Hi"
    assert [row["logprob"] for row in rows] == [-0.5, -0.25]
    assert [len(row["top_logprobs"]) for row in rows] == alternatives
    assert answer["usage"]["prompt_tokens"] == 4


def test_a_native_answer_becomes_a_chat_completion() -> None:
    check_native(converted(NATIVE), 1 << 20, [2, 2])
    asked = {"prompt": "abc", "n_probs": 1, "n_predict": 9}
    check_native(converted({"request": asked, "response": NATIVE})["response"], 1, [1, 1])


def test_the_adapter_tells_what_the_shape_does_not() -> None:
    """With `response_fields` llama.cpp leaves out what else would show whose answer it is."""
    bare = {key: NATIVE[key] for key in ("content", "model")}
    assert "no answer but an error" in rejected(bare)
    answer = converted(bare, adapter="llamacpp")
    assert answer["choices"][0]["message"]["content"] == "Hi"


def test_a_real_native_answer(llama_server: str) -> None:
    prompt = {"prompt": "<user>hi<assistant>", "n_predict": 12, "n_probs": 3, "temperature": 0}
    sent = urllib.Request(f"{llama_server}/completion", json.dumps(prompt).encode())
    with urllib.urlopen(sent, timeout=120) as reply:
        raw = reply.read()
    answer = converted(raw)
    probabilities = json.loads(raw)["completion_probabilities"]
    asked = Request(logprobs=True, k=3, switches=SWITCHES)
    assert check_body(json.dumps(answer).encode(), asked) == []
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == json.loads(raw)["content"] != ""
    given = [row["logprob"] for row in probabilities]
    kept = [row["logprob"] for row in choice["logprobs"]["content"]]
    assert kept == given[: len(kept)]
    assert len(given) - len(kept) <= 1  # the end of text owns no content


# What is odd, and what is refused


def test_nan_and_bytes_that_are_no_utf8() -> None:
    entry = {"token": "Hi", "logprob": float("nan"), "bytes": [72, 105], "top_logprobs": []}
    answer = chat_answer()
    answer["choices"][0]["logprobs"] = {"content": [entry], "refusal": None}
    for holder in (answer, {"response": answer, "score": float("inf")}):
        found = converted(holder)
        body = found.get("response", found)
        assert body["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999
        assert found.get("score") is None
    batch = {"response": {"body": chat_answer()}, "score": float("inf")}
    result = converter().convert(json.dumps(batch).encode())
    assert json.loads(result.line) == {**batch, "score": None}
    assert (result.changed, result.repairs) == (True, {"shape_unusual": 1})
    odd = json.dumps(chat_answer()).encode().replace(b"Hi", b"H\xff")
    for line in (odd, b'{"response": %b, "a": "\xff"}' % odd):
        found = converted(line)
        body = found.get("response", found)
        assert body["choices"][0]["message"]["content"] == "H\ufffd"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "the line is not JSON"),
        (b"data: {}", "jq -c"),
        (b"[" * 100_000, "nests too deeply"),
        (b"[1]", "the line is a list"),
        (b'"text"', 'the line is "text"'),
        (b"{}", "no answer but an error (502)"),
        (b'{"response": null, "error": {"code": "x"}}', 'without a response: {"code": "x"}'),
        (b'{"response": "text"}', 'the response is "text", not a JSON object'),
        (b'{"response": {"status_code": 200, "body": null}}', "the response is null"),
        ({"error": {"message": "gone", "code": 404}}, "(404): gone"),
        ({"response": {"status_code": 429, "body": {"message": "slow"}}}, "(429): slow"),
        ({"request": 5, "response": chat_answer()}, "the request is 5"),
        ({"request": {"logprobs": "yes"}, "response": chat_answer()}, "request cannot be read"),
        (chat_answer(choices=[]), '"choices" is an empty list'),
    ],
)
def test_what_is_no_answer_is_refused_with_the_reason(line: Any, words: str) -> None:
    assert words in rejected(line)
