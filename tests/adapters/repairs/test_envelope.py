"""Contract rule 3: the envelope: id, created, object, model, fingerprint, service tier."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answers import (
    CREATED,
    ID,
    Said,
    ask,
    body,
    choice,
    chunk,
    completion,
    end,
    message,
    role,
    say,
    stream,
)
from tests.examples import examples
from tests.replay import NOW, exchange
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.envelope import id_not_chatcmpl

HI = [role(), say("Hi"), end()]


def both(**more: Any) -> list[Said]:
    """Return what comes of these envelope keys in a body and in all chunks of a stream."""
    return [body(completion(**more)), stream([{**part, **more} for part in HI])]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (ID, ID),
        ("chatcmpl-12345678", "chatcmpl-12345678"),
        ("cmpl-0123456789abcdef", "chatcmpl-0123456789abcdef"),
        ("gen-0123456789", "chatcmpl-0123456789"),
        ("0123456789abcdef", "chatcmpl-0123456789abcdef"),
        ("chatcmpl-A1", "chatcmpl-made00000001"),
        ("cmpl-7f3c", "chatcmpl-made00000001"),
        ("0", "chatcmpl-made00000001"),
        ("", "chatcmpl-made00000001"),
        (None, "chatcmpl-made00000001"),
        (7, "chatcmpl-made00000001"),
        ("a b c d e f g", "chatcmpl-made00000001"),
    ],
)
def test_the_id_keeps_the_backends_suffix(given: Any, wanted: str) -> None:
    for said in both(id=given):
        assert said.answer["id"] == wanted
        assert said.repairs == ({} if given == wanted else said.repairs)
        assert ("id_not_chatcmpl" in said.repairs) == (given != wanted)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (CREATED, CREATED),
        (float(CREATED) + 0.5, CREATED),
        (str(CREATED), CREATED),
        (1_000_000_000, 1_000_000_000),
        (999_999_999, NOW),
        (12_345, NOW),
        (CREATED * 1000, NOW),
        (0, NOW),
        (-5, NOW),
        (None, NOW),
        (True, NOW),
        ("now", NOW),
        (1e300, NOW),
        ([], NOW),
    ],
)
def test_created_is_epoch_seconds(given: Any, wanted: int) -> None:
    """VLLM <= 0.3.3 and OpenLLM send a monotonic clock."""
    for said in both(created=given):
        assert said.answer["created"] == wanted
        assert ("created_not_epoch" in said.repairs) == (given != wanted or given is True)


def test_the_model_is_what_the_client_asked_for() -> None:
    for said in both(model="/models/x.gguf"):
        assert said.answer["model"] == "m"
        assert said.repairs["model_not_requested"] == 1
    for said in both(model=None):
        assert said.answer["model"] == "m"


@pytest.mark.parametrize("given", ["text_completion", None, ""])
def test_the_object_is_its_own(given: Any) -> None:
    whole, streamed = both(object=given)
    assert whole.answer["object"] == "chat.completion"
    assert {x["object"] for x in streamed.chunks} == {"chat.completion.chunk"}
    assert whole.repairs == {"object_wrong": 1} and streamed.repairs == {"object_wrong": 3}


def test_one_envelope_over_a_stream() -> None:
    """Cortex makes a new id for every chunk."""
    parts = [
        {**part, "id": f"chatcmpl-{n}2345678", "created": CREATED + n, "model": f"m{n or ''}"}
        for n, part in enumerate(HI)
    ]
    said = stream(parts)
    heads = {(x["id"], x["created"], x["model"]) for x in said.chunks}
    assert heads == {("chatcmpl-02345678", CREATED, "m")}
    assert said.repairs == {"id_changes": 2, "created_changes": 2, "model_changes": 2}


def test_keys_that_are_absent_are_made() -> None:
    given = completion()
    for key in ("id", "object", "created", "model"):
        del given[key]
    answer = body(given).answer
    assert (answer["id"], answer["created"], answer["model"]) == ("chatcmpl-made00000001", NOW, "m")


def test_a_fingerprint_is_kept_and_null_omitted() -> None:
    for said in both(system_fingerprint="fp_1"):
        assert said.answer["system_fingerprint"] == "fp_1"
        assert said.repairs == {}
    for said in both(system_fingerprint=None):
        assert b"system_fingerprint" not in said.raw
        assert "system_fingerprint_null" in said.repairs
    for said in both(system_fingerprint=None, x=1):
        assert b"system_fingerprint" not in said.raw


def test_a_fingerprint_that_comes_late() -> None:
    said = stream(
        [role(), {**say("Hi"), "system_fingerprint": "fp_1"}, end()], waived=["6.constant"]
    )
    assert said.answer["system_fingerprint"] == "fp_1"


@pytest.mark.parametrize(
    ("asked", "given", "wanted", "repair"),
    [
        ("auto", "default", "default", None),
        ("auto", "scale", "default", "service_tier_replaced"),
        ("auto", ..., "default", "service_tier_replaced"),
        (None, "default", None, "service_tier_unasked"),
        (None, None, None, "null_key_omitted"),
        (None, ..., None, None),
    ],
)
def test_a_service_tier_is_default_where_one_was_asked_for(
    asked: str | None, given: Any, wanted: str | None, repair: str | None
) -> None:
    more = {} if given is ... else {"service_tier": given}
    request = ask(service_tier=asked) if asked else ask()
    for said in (
        body(completion(**more), request),
        stream([{**part, **more} for part in HI], request),
        body(completion(choice(x=1), **more), request),
    ):
        assert said.answer.get("service_tier") == wanted
        assert repair is None or repair in said.repairs
        if wanted is None:
            assert b"service_tier" not in said.raw


# --- the role and the message -------------------------------------------------------------------


# --- extensions -----------------------------------------------------------------------------------


@settings(max_examples=examples(100), deadline=None, database=None)
@given(st.text(max_size=20), st.sampled_from(["", "chatcmpl-", "cmpl-"]))
def test_any_id_is_a_proper_one(text: str, prefix: str) -> None:
    context = Context(exchange(ask()))
    found = id_not_chatcmpl(prefix + text, context)
    assert re.fullmatch(r"chatcmpl-[A-Za-z0-9_\-]{8,128}", found)
    assert ("id_not_chatcmpl" in context.notes.counts) == (found != prefix + text)


def test_a_fingerprint_stays_what_it_was() -> None:
    chunks = [
        chunk(message(""), system_fingerprint="fp_a"),
        {**say("Hi"), "system_fingerprint": "fp_b"},
        {**end(), "system_fingerprint": "fp_a"},
    ]
    assert stream(chunks).repairs == {"system_fingerprint_changes": 1}


LONG = "1" * 5_000


def test_a_created_of_too_many_digits_is_replaced() -> None:
    said = body(completion(created=LONG))
    assert said.repairs["created_not_epoch"] == 1
