"""The checker of responses is itself checked: it passes what conforms and refuses every mutant."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance.responses import RESPONSE_RULES, check_response, check_response_error
from tests.conformance.responses.test_conformance_response_stream import (
    FRAMING_MUTANTS,
    STREAM_MUTANTS,
)
from tests.conformance.test_conformance import drop, edit, put
from tests.conforming import ERROR
from tests.conforming_responses import CUSTOM, FUNCTION, SAMPLES, call, message, refusal, text

Mutation = Callable[[Any], Any]

OTHERS: dict[str, Any] = {
    "instructions": None,
    "metadata": {},
    "temperature": 1.0,
    "top_p": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "store": True,
    "truncation": "disabled",
    "safety_identifier": None,
    "prompt_cache_key": None,
    "user": "other",
}
"""What the request of the sample "said" did not say."""

ITEM = ("output", 0)
PART = (*ITEM, "content", 0)
ROWS = (*PART, "logprobs")
TOP = (*ROWS, 1, "top_logprobs")
REPLACED = {"token": "\ufffd", "bytes": [239, 191, 189]}
ERROR_SAID = {"code": "x", "message": "y"}


def twice(found: list[Any]) -> None:
    """Put a list's first into its second's place."""
    found[1] = copy.deepcopy(found[0])


def merge(rows: list[Any]) -> None:
    """Leave a row out and let the next one own its bytes, so that the text still tiles."""
    owner = rows.pop(1)
    rows[1]["bytes"] = owner["bytes"] + rows[1]["bytes"]
    rows[1]["token"] = " é"


# (sample, name, mutation, rule)
BODY_MUTANTS: list[tuple[str, str, Mutation, str]] = [
    *(
        ("text", f"no {key}", drop(key), "R.keys")
        for key in SAMPLES["text"].body
    ),
    ("text", "output_text of the SDK", put("output_text", value="Hi"), "R.keys"),
    ("text", "timings nobody asked for", put("timings", value={}), "R.keys"),
    ("text", "a chat's choices", put("choices", value=[]), "R.keys"),
    ("text", "float created", put("created_at", value=1741476777.5), "R.types"),
    ("text", "null temperature", put("temperature", value=None), "R.types"),
    ("text", "null top_p", put("top_p", value=None), "R.types"),
    ("text", "null store", put("store", value=None), "R.types"),
    ("text", "null metadata", put("metadata", value=None), "R.types"),
    ("text", "null tools", put("tools", value=None), "R.types"),
    ("text", "null tier", put("service_tier", value=None), "R.types"),
    ("text", "unknown tier", put("service_tier", value="best"), "R.types"),
    ("text", "truncation", put("truncation", value=None), "R.types"),
    ("text", "background null", put("background", value=None), "R.types"),
    ("text", "a chat's id", put("id", value="chatcmpl-67ccd3a9da74"), "R.id"),
    ("text", "short id", put("id", value="resp_1"), "R.id"),
    ("text", "object", put("object", value="chat.completion"), "R.object"),
    ("text", "created in ms", put("created_at", value=1741476777000), "R.created"),
    ("text", "model path", put("model", value="/models/x"), "R.model"),
    ("text", "in progress", put("status", value="in_progress"), "R.status"),
    ("text", "unknown status", put("status", value="done"), "R.status"),
    ("text", "completed, never", put("completed_at", value=None), "R.completed_at"),
    ("text", "completed before", put("completed_at", value=1741476776), "R.completed_at"),
    ("cut", "cut, completed", put("completed_at", value=1741476778), "R.completed_at"),
    ("cut", "no details", put("incomplete_details", value=None), "R.incomplete"),
    ("cut", "a chat's reason", put("incomplete_details", "reason", value="length"), "R.incomplete"),
    ("text", "details of none", put("incomplete_details", value={"reason": "max_output_tokens"}),
     "R.incomplete"),
    ("failed", "no error", put("error", value=None), "R.error"),
    ("failed", "code null", put("error", "code", value=None), "R.error"),
    ("failed", "no message", put("error", "message", value=""), "R.error"),
    ("failed", "status in it", put("error", "status", value=502), "R.error"),
    ("text", "error of none", put("error", value=ERROR_SAID), "R.error"),
    ("text", "usage null", put("usage", value=None), "R.usage"),
    ("text", "a chat's usage", put("usage", value={"prompt_tokens": 19}), "R.usage_keys"),
    ("text", "no input details", drop("usage", "input_tokens_details"), "R.usage_keys"),
    ("text", "details null", put("usage", "output_tokens_details", value=None), "R.usage_keys"),
    ("text", "no written", drop("usage", "input_tokens_details", "cache_write_tokens"),
     "R.usage_keys"),
    ("text", "wrong sum", put("usage", "total_tokens", value=24), "R.sum"),
    ("text", "a float", put("usage", "input_tokens", value=19.5), "R.sum"),
    ("text", "more cached", put("usage", "input_tokens_details", "cached_tokens", value=20),
     "R.sum"),
    ("reasoning", "more reasoning", put("usage", "output_tokens_details", "reasoning_tokens",
                                        value=7), "R.sum"),
    ("text", "constant usage", put("usage", value={
        **SAMPLES["text"].body["usage"], "input_tokens": 6, "output_tokens": 19}), "R.numbers"),
    *(
        ("said", f"another {key}", put(key, value=value), "R.echo")
        for key, value in OTHERS.items()
    ),
    ("said", "user missing", drop("user"), "R.echo"),
    ("scored", "another k", put("top_logprobs", value=0), "R.echo"),
    ("text", "unsaid instructions", put("instructions", value="x"), "R.echo"),
    ("text", "in the background", put("background", value=True), "R.echo"),
    ("text", "a conversation", put("conversation", value={"id": "conv_1"}), "R.echo"),
    ("text", "text, no format", put("text", value={}), "R.text"),
    ("said", "text for json", put("text", "format", value={"type": "text"}), "R.text"),
    ("said", "no schema", drop("text", "format", "schema"), "R.text"),
    ("said", "no description", drop("text", "format", "description"), "R.text"),
    ("said", "verbosity", put("text", "verbosity", value="medium"), "R.text"),
    ("text", "unknown verbosity", put("text", "verbosity", value=None), "R.text"),
    ("said", "no reasoning", put("reasoning", value=None), "R.reasoning"),
    ("said", "effort", put("reasoning", "effort", value="high"), "R.reasoning"),
    ("said", "no summary", drop("reasoning", "summary"), "R.reasoning"),
    ("said", "no tools", put("tools", value=[]), "R.tools"),
    ("said", "a chat's tool", put("tools", value=[{"type": "function", "function": FUNCTION}]),
     "R.tools"),
    ("said", "no strict", drop("tools", 0, "strict"), "R.tools"),
    ("said", "no description of it", drop("tools", 0, "description"), "R.tools"),
    ("said", "other parameters", put("tools", 0, "parameters", value={}), "R.tools"),
    ("text", "a tool of nobody", put("tools", value=[FUNCTION]), "R.tools"),
    ("custom", "order of the tools", edit("tools", by=lambda t: t.reverse()), "R.tools"),
    ("custom", "custom as a function", put("tools", 1, "type", value="function"), "R.tools"),
    ("namespace", "left out", put("tools", value=[]), "R.tools"),
    ("said", "tool choice", put("tool_choice", value="auto"), "R.tool_choice"),
    ("text", "unsaid choice", put("tool_choice", value="none"), "R.tool_choice"),
    ("calls", "a chat's call", put("output", 1, "type", value="function"), "item.type"),
    ("text", "an input", put(*ITEM, "type", value="function_call_output"), "item.type"),
    ("text", "no object", put("output", value=["Hi"]), "item.type"),
    *(("text", f"message without {k}", drop(*ITEM, k), "item.keys") for k in
      ("id", "status", "role", "content")),
    *(("calls", f"call without {k}", drop("output", 1, k), "item.keys") for k in
      ("id", "status", "call_id", "name", "arguments")),
    *(("custom", f"custom call without {k}", drop(*ITEM, k), "item.keys") for k in
      ("id", "status", "call_id", "name", "input")),
    *(("reasoning", f"reasoning without {k}", drop(*ITEM, k), "item.keys") for k in
      ("id", "summary")),
    ("text", "calls in a message", put(*ITEM, "tool_calls", value=[]), "item.keys"),
    ("reasoning", "text in reasoning", put(*ITEM, "text", value="x"), "item.keys"),
    ("text", "role", put(*ITEM, "role", value="user"), "item.types"),
    ("text", "content a text", put(*ITEM, "content", value="Hi"), "item.types"),
    ("calls", "arguments an object", put("output", 1, "arguments", value={}), "item.types"),
    ("calls", "no name", put("output", 1, "name", value=""), "item.types"),
    ("calls", "null namespace", put("output", 1, "namespace", value=None), "item.types"),
    ("reasoning", "sealed null", put(*ITEM, "encrypted_content", value=None), "item.types"),
    ("reasoning", "null status", put(*ITEM, "status", value=None), "item.types"),
    ("reasoning", "null content", put(*ITEM, "content", value=None), "item.types"),
    ("text", "the response's id", put(*ITEM, "id", value="resp_67ccd3acc8d4"), "item.id"),
    ("calls", "the call's id", put("output", 1, "id", value="call_67ccd3acc8d4"), "item.id"),
    ("custom", "a function's id", put(*ITEM, "id", value="fc_67ccd3acc8d4"), "item.id"),
    ("reasoning", "a message's id", put(*ITEM, "id", value="msg_67ccd3acc8d4"), "item.id"),
    ("text", "empty id", put(*ITEM, "id", value="msg_"), "item.id"),
    ("calls", "one id twice", put("output", 2, "id", value=call(1)["id"]), "item.unique"),
    ("text", "item in progress", put(*ITEM, "status", value="in_progress"), "item.status"),
    ("text", "cut in completed", put(*ITEM, "status", value="incomplete"), "item.status"),
    ("failed, half kept", "for ever", put(*ITEM, "status", value="in_progress"), "item.status"),
    ("cut", "whole although cut", put("output", 1, "status", value="completed"), "item.cut"),
    ("cut call", "whole call", put(*ITEM, "status", value="completed"), "item.cut"),
    ("text", "input_text", put(*PART, "type", value="input_text"), "part.type"),
    ("text", "reasoning in it", put(*PART, value={"type": "reasoning_text", "text": "x"}),
     "part.type"),
    ("reasoning", "text in it", put(*PART, "type", value="output_text"), "part.type"),
    ("text", "no annotations", drop(*PART, "annotations"), "part.keys"),
    ("text", "no logprobs", drop(*PART, "logprobs"), "part.keys"),
    ("refusal", "text beside", put(*PART, "text", value=""), "part.keys"),
    ("text", "annotations null", put(*PART, "annotations", value=None), "part.types"),
    ("text", "logprobs null", put(*PART, "logprobs", value=None), "part.types"),
    ("text", "text null", put(*PART, "text", value=None), "part.types"),
    ("refusal", "refusal null", put(*PART, "refusal", value=None), "part.types"),
    ("text", "nothing in it", put(*ITEM, "content", value=[]), "part.none"),
    ("calls", "one call twice", put("output", 2, "call_id", value="call_1"), "call.id"),
    ("calls", "empty call id", put("output", 2, "call_id", value=""), "call.id"),
    ("custom", "custom as function", put(*ITEM, value=call(name=CUSTOM["name"])), "call.kind"),
    ("calls", "function as custom", edit("output", by=lambda o: o.__setitem__(1, {
        **{k: v for k, v in o[1].items() if k != "arguments"}, "type": "custom_tool_call",
        "id": "ctc_67ccd3acc8d4", "input": ""})), "call.kind"),
    ("said", "two calls", edit("output", by=lambda o: o.append(call(2))), "call.one"),
    ("reasoning", "summary", put(*ITEM, "summary", value=[{"type": "summary_text", "text": "x"}]),
     "summary"),
    ("text", "unasked rows", put(*PART, "logprobs", value=SAMPLES["scored"].body["output"][0][
        "content"][0]["logprobs"]), "logprobs.unasked"),
    ("scored", "bytes null", put(*ROWS, 0, "bytes", value=None), "logprobs.bytes"),
    ("scored", "a byte of 256", put(*TOP, 0, "bytes", value=[256]), "logprobs.bytes"),
    ("scored", "no bytes", drop(*ROWS, 0, "bytes"), "7.shape"),
    ("scored", "an id", put(*ROWS, 0, "id", value=7), "7.shape"),
    ("scored", "no alternatives", drop(*ROWS, 0, "top_logprobs"), "7.shape"),
    ("scored", "a row a text", put(*ROWS, 0, value="Hi"), "7.shape"),
    ("scored", "positive", put(*TOP, 0, "logprob", value=0.5), "7.value"),
    ("scored", "null number", put(*ROWS, 0, "logprob", value=None), "7.value"),
    ("scored", "bytes empty", put(*ROWS, 0, "bytes", value=[]), "7.null"),
    ("scored", "raw BPE", put(*TOP, 0, "token", value="Ġyou"), "7.spelling"),
    ("scored", "replaced", edit(*ROWS, 4, by=lambda e: e.update(REPLACED)), "7.replacement"),
    ("scored", "k + 1", edit(*TOP, by=lambda t: t.append(
        {"token": "\n", "bytes": [10], "logprob": -12.0})), "7.k"),
    ("scored", "unsorted", edit(*TOP, by=lambda t: t.reverse()), "7.descending"),
    ("scored", "twice", edit(*TOP, by=twice), "7.distinct"),
    ("scored", "not its own", put(*ROWS, 1, "logprob", value=-0.5), "7.own"),
    ("scored", "row missing", drop(*ROWS, 0), "7.tiling"),
    ("scored", "text cut", put(*PART, "text", value="Hi é"), "7.tiling"),
    ("scored", "none left", put(*PART, "logprobs", value=[]), "7.missing"),
    ("scored", "merged", edit(*ROWS, by=merge), "7.count"),
    ("scored", "other number", put(*ROWS, 3, "logprob", value=-4.5), "7.numbers"),
    ("scored", "alternative missing", edit(*TOP, by=lambda t: t.pop()), "7.offered"),
    ("text", "another text", put(*PART, "text", value="Hi"), "8.text"),
    ("text", "a refusal instead", put(*ITEM, value=message(refusal())), "8.text"),
]  # fmt: skip

RAW_MUTANTS = [
    ("NaN", b'"logprob": -0.25', b'"logprob": NaN'),
    ("duplicate key", b'"object": "response"', b'"object": 1, "object": "response"'),
    ("lone surrogate", b'"Hi \\u00e9', b'"\\ud83dHi \\u00e9'),
    ("cut", b'"usage"', b'usage"'),
    ("a list", b'{"id": "resp', b'[{"id": "resp'),
]

SAID = ERROR["error"]
ERROR_MUTANTS: list[tuple[str, Any, int, str]] = [
    ("flat", SAID, 404, "12.shape"),
    ("code an int", {"error": {**SAID, "code": 404}}, 404, "12.shape"),
    ("status", ERROR, 200, "12.status"),
    ("overflow", {"error": {**SAID, "message": "This exceeds the available context size."}}, 400,
     "12.context"),
    ("a chat's name", {"error": {**SAID, "param": "messages[0].content"}}, 400, "error.names"),
    ("all messages", {"error": {**SAID, "param": "messages"}}, 400, "error.names"),
    ("a chat's limit", {"error": {**SAID, "param": "max_completion_tokens"}}, 400, "error.names"),
    ("a chat's format", {"error": {**SAID, "message": "Invalid 'response_format'."}}, 400,
     "error.names"),
    ("HTML", "<html>", 502, "json"),
]  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_conforming_response_passes(name: str) -> None:
    sample = SAMPLES[name]
    assert check_response(sample.body, sample.request, sample.facts) == []


@pytest.mark.parametrize(
    ("sample", "mutate", "rule"),
    [pytest.param(s, m, r, id=f"{s}-{n}") for s, n, m, r in BODY_MUTANTS],
)
def test_response_mutant_is_refused(sample: str, mutate: Mutation, rule: str) -> None:
    good = SAMPLES[sample]
    body = copy.deepcopy(good.body)
    mutate(body)
    assert body != good.body
    found = check_response(body, good.request, good.facts)
    assert rule in {v.rule for v in found}, found


@pytest.mark.parametrize(("old", "new"), [pytest.param(o, n, id=i) for i, o, n in RAW_MUTANTS])
def test_raw_mutant_of_a_response_is_refused(old: bytes, new: bytes) -> None:
    good = SAMPLES["scored"]
    data = json.dumps(good.body).encode()
    assert old in data
    found = check_response(data.replace(old, new, 1), good.request, good.facts)
    assert "json" in {v.rule for v in found}, found


def test_conforming_error_of_a_response_passes() -> None:
    named = {"error": {**SAID, "param": "input[2].content[0].type"}}
    for error in (ERROR, named):
        assert check_response_error(json.dumps(error).encode(), 404) == []


@pytest.mark.parametrize(
    ("value", "status", "rule"),
    [pytest.param(v, s, r, id=i) for i, v, s, r in ERROR_MUTANTS],
)
def test_error_mutant_of_a_response_is_refused(value: Any, status: int, rule: str) -> None:
    data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    assert rule in {v.rule for v in check_response_error(data, status)}


def test_a_vendor_s_key_passes_where_its_switch_was_named() -> None:
    good = SAMPLES["text"]
    body = {**good.body, "timings": {"predicted_n": 3}}
    assert check_response(body, {**good.request, "timings_per_token": True}) == []


def test_unknown_bytes_are_an_empty_list() -> None:
    good = SAMPLES["scored"]
    rows = [{"token": "token_id:7", "bytes": [], "logprob": -1.0, "top_logprobs": []}]
    body = {**good.body, "output": [message(text("Hi", rows))]}
    assert check_response(body, good.request) == []
    rows[0]["token"] = "Hi"
    assert {v.rule for v in check_response(body, good.request)} == {"7.null", "7.tiling"}


def test_facts_are_of_a_message_s_texts_together() -> None:
    good = SAMPLES["scored"]
    rows = good.body["output"][0]["content"][0]["logprobs"]
    first = message(text("Hi", rows[:1]))
    rest = message(text(" é😀!", rows[1:]), id="msg_0123456789")
    body = {**good.body, "output": [first, SAMPLES["reasoning"].body["output"][0], rest]}
    assert check_response(body, good.request, good.facts) == []
    assert good.facts is not None
    lost = replace(good.facts.choices[0], rows=(good.facts.choices[0].rows or ())[1:])
    found = check_response(body, good.request, replace(good.facts, choices={0: lost}))
    assert {v.rule for v in found} == {"7.count"}


def test_every_rule_of_a_response_has_a_mutant() -> None:
    refused = {"json"}
    for table in (BODY_MUTANTS, ERROR_MUTANTS, STREAM_MUTANTS, FRAMING_MUTANTS):
        refused |= {row[-1] for row in table}
    assert refused == set(RESPONSE_RULES)
