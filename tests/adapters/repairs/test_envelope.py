"""Contract rules 3, 6, 8 and 9: the envelope, the role, the message's keys and extensions."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answers import (
    CREATED,
    ID,
    Json,
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
from tests.fold import payloads
from tests.replay import NOW, exchange
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.envelope import id_not_chatcmpl

HI = [role(), say("Hi"), end()]


def both(**more: Any) -> list[Said]:
    """Return what comes of these envelope keys in a body and in all chunks of a stream."""
    return [body(completion(**more)), stream([{**part, **more} for part in HI])]


def chunks(said: Said) -> list[Json]:
    return [json.loads(x) for x in payloads(said.raw) if x != b"[DONE]"]


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
    assert {x["object"] for x in chunks(streamed)} == {"chat.completion.chunk"}
    assert whole.repairs == {"object_wrong": 1} and streamed.repairs == {"object_wrong": 3}


def test_one_envelope_over_a_stream() -> None:
    """Cortex makes a new id for every chunk."""
    parts = [
        {**part, "id": f"chatcmpl-{n}2345678", "created": CREATED + n, "model": f"m{n or ''}"}
        for n, part in enumerate(HI)
    ]
    said = stream(parts)
    heads = {(x["id"], x["created"], x["model"]) for x in chunks(said)}
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


def test_a_role_comes_once() -> None:
    parts = [role(), *(chunk({"role": "assistant", "content": x}) for x in "Hi"), end()]
    said = stream(parts)
    assert said.raw.count(b'"role"') == 1
    assert said.message["content"] == "Hi"
    assert said.repairs["role_repeated"] == 2


@pytest.mark.parametrize(
    "delta",
    [
        {"role": "assistant"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "", "refusal": None, "reasoning_content": None},
        {"role": "bot", "content": ""},
        {"role": None, "content": ""},
        {},
    ],
    ids=json.dumps,
)
def test_the_first_delta_is_the_role(delta: Json) -> None:
    said = stream([chunk(delta), say("Hi"), end()])
    first = chunks(said)[0]["choices"][0]["delta"]
    assert first == {"role": "assistant", "content": "", "refusal": None}
    assert said.message["content"] == "Hi"


def test_a_choice_that_begins_with_its_text_or_its_end_has_a_role() -> None:
    for parts in ([say("Hi"), end()], [end()], [chunk({"content": "Hi"}, "stop")]):
        said = stream(parts)
        first = chunks(said)[0]["choices"][0]["delta"]
        assert first == {"role": "assistant", "content": "", "refusal": None}


@pytest.mark.parametrize("given", ["user", None, ...])
def test_a_bodys_role_is_assistant(given: Any) -> None:
    part = message()
    if given is ...:
        del part["role"]
    else:
        part["role"] = given
    said = body(completion(choice(message=part)))
    assert said.message["role"] == "assistant"
    assert said.repairs == {"role_missing": 1}


@pytest.mark.parametrize(
    ("given", "text", "repair"),
    [
        ([{"type": "text", "text": "H"}, {"type": "text", "text": "i"}], "Hi", "content_parts"),
        (["H", "i", 7, {"type": "image"}], "Hi", "content_parts"),
        (12, "12", "content_not_text"),
        (None, "", "content_null"),
    ],
)
def test_content_is_text(given: Any, text: str, repair: str) -> None:
    said = body(completion(choice(given)))
    assert said.message["content"] == text
    assert said.repairs[repair] == 1


def test_content_is_null_only_beside_a_call_or_a_refusal() -> None:
    said = body(completion(choice(message=message(None, refusal="No."))))
    assert (said.message["content"], said.message["refusal"]) == (None, "No.")
    assert said.repairs == {}
    said = body(completion(choice(message=message(None, refusal=None))))
    assert said.message["content"] == ""


def test_the_refusal_key_is_always_there() -> None:
    part = message()
    del part["refusal"]
    said = body(completion(choice(message=part)))
    assert said.message["refusal"] is None
    assert said.repairs == {"refusal_missing": 1}


def test_a_streamed_refusal() -> None:
    parts = [role(), chunk({"refusal": "No"}), chunk({"refusal": "."}), end()]
    said = stream(parts)
    assert said.message["refusal"] == "No."
    assert said.repairs == {}
    said = stream([chunk({"refusal": "No", "x": 1}), end()])
    assert said.message["refusal"] == "No"


@pytest.mark.parametrize("where", ["message", "delta", "text"])
def test_what_a_choice_says_under_another_name(where: str) -> None:
    whole, part = choice(), say("Hi")
    del whole["message"]
    del part["choices"][0]["delta"]
    said = [
        body(completion({**whole, where: "Hi" if where == "text" else message()}), ask()),
    ]
    if where != "delta":
        part["choices"][0][where] = "Hi" if where == "text" else {"content": "Hi"}
        said.append(stream([role(), part, end()]))
    for one in said:
        assert one.message["content"] == "Hi"
        assert ("choice_part_misnamed" in one.repairs) == (where != "message" or one is said[-1])


def test_a_choice_that_says_nothing_at_all() -> None:
    bare = choice()
    del bare["message"]
    said = body(completion(bare))
    assert (said.message["content"], said.repairs["choice_part_misnamed"]) == ("", 1)


def test_a_chunk_that_says_nothing_at_all() -> None:
    bare = say("")
    del bare["choices"][0]["delta"]
    said = stream([role(), bare, say("Hi"), end()])
    assert said.message["content"] == "Hi"
    assert said.repairs == {"choice_part_misnamed": 1}


def test_reasoning_is_dropped_where_no_extensions_are_wanted() -> None:
    for name, more in (("reasoning_content", {}), ("reasoning", {"x": 1})):
        given = completion(choice(message=message("Hi", **{name: "Hm."}, **more)))
        said = translated("none", frozenset(), given)
        assert said.message == {"role": "assistant", "content": "Hi", "refusal": None}
        assert said.repairs["extra_field_dropped"] == 1 + len(more)


def test_one_choice_where_the_list_belongs() -> None:
    given = {**completion(), "choices": choice()}
    said = body(given)
    assert said.message["content"] == "Hi"
    assert said.repairs["choices_object"] == 1


# --- extensions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["tool_calls", "function_call", "audio", "annotations", "reasoning_content", "reasoning"]
)
def test_null_keys_are_omitted(key: str) -> None:
    for said in (
        body(completion(choice(message=message("Hi", **{key: None})))),
        body(completion(choice(message=message("Hi", **{key: None}, x=1)))),
        stream([role(), chunk({"content": "Hi", key: None}), end()]),
        stream([role(), chunk({"content": "Hi", key: None, "x": 1}), end()]),
    ):
        assert key.encode() not in said.raw
        assert said.repairs["null_key_omitted"] == 1


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


def test_annotations_are_openais_own_and_empty_ones_are_omitted() -> None:
    notes = [{"type": "url_citation", "url_citation": {"url": "x"}}]
    said = body(completion(choice(message=message("Hi", annotations=notes))))
    assert said.message["annotations"] == notes
    said = body(completion(choice(message=message("Hi", annotations=[], role="x"))))
    assert "annotations" not in said.message


@settings(max_examples=100, deadline=None, database=None)
@given(st.text(max_size=20), st.sampled_from(["", "chatcmpl-", "cmpl-"]))
def test_any_id_is_a_proper_one(text: str, prefix: str) -> None:
    context = Context(exchange(ask()))
    found = id_not_chatcmpl(prefix + text, context)
    assert re.fullmatch(r"chatcmpl-[A-Za-z0-9_\-]{8,128}", found)
    assert ("id_not_chatcmpl" in context.notes.counts) == (found != prefix + text)
