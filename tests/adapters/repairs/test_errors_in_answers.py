"""Contract rule 12: failures that come as an answer of status 200, and what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.answers import USAGE, body, end, role, say, stream
from tests.linear import linear
from wellspoken.adapters.repairs import faults

LONG = "1" * 5_000


@pytest.mark.parametrize("code", ["²", LONG, [1], {"a": []}, 2**70, -1, 1.5, True, "x" * 999])
@pytest.mark.parametrize("status", [200, 400])
def test_a_code_of_any_kind_is_no_crash(code: Any, status: int) -> None:
    said = body(json.dumps({"error": {"message": "No.", "code": code}}).encode(), status=status)
    assert said.error is not None and said.error["message"] == "No."
    assert said.status == (status if status >= 400 else 502)
    assert len(said.error["code"] or "") <= 128


FAILURES: dict[str, tuple[Any, int, str | None, str]] = {
    "fastchat": ({"text": "**NETWORK ERROR**", "error_code": 50002}, 502, "50002", "NETWORK"),
    "fastchat: overflow": (
        {"text": "No.", "error_code": 40303},
        400,
        "context_length_exceeded",
        "No.",
    ),
    "msg": ({"code": 500, "msg": "oom"}, 500, None, "oom"),
    "msg alone": ({"msg": "oom"}, 502, None, "oom"),
    "a code alone": ({"code": 503}, 503, None, "503"),
    "an empty error": ({"error": {}}, 502, None, "502"),
    "gemini": ([{"error": {"code": 429, "message": "Slow."}}], 429, None, "Slow."),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_without_choices_is_an_error(name: str) -> None:
    payload, status, code, told = FAILURES[name]
    said = body(json.dumps(payload).encode())
    assert said.error is not None and told in said.error["message"]
    assert (said.status, said.error["code"]) == (status, code)
    said = stream([role(), say("Hi"), payload])
    assert said.error is not None and told in said.error["message"]


@pytest.mark.parametrize(
    "payload",
    [
        {"choices": [], "error": None, "usage": USAGE},
        {"usage": USAGE, "error": ""},
        {"code": 0, "msg": "success"},
        {"code": 200, "msg": "ok"},
        {"error_code": 0, "error": None},
        {"ping": 1},
        [{"ping": 1}, {"error": "x"}],
    ],
)
def test_what_is_no_error_is_none(payload: Any) -> None:
    assert not faults.is_error(payload)


def test_a_chunk_that_is_nothing_known_is_dropped_and_counted() -> None:
    said = stream([role(), say("Hi"), {"ping": 1}, end()])
    assert said.error is None and said.repairs["chunk_without_choices"] == 1


@pytest.mark.parametrize("given", [b"null", b'""'])
def test_a_null_event_is_ignored_and_counted(given: bytes) -> None:
    said = stream([role(), given, say("Hi"), end()])
    assert said.error is None and said.message["content"] == "Hi"
    assert said.repairs == {"chunk_null": 1}


def test_an_overflow_inside_a_200_is_the_clients() -> None:
    text = "This model's maximum context length is 10 tokens"
    sent = [{"error": {"message": text, "code": x}} for x in (None, "context_length_exceeded")]
    for given in (*(json.dumps(x).encode() for x in sent), text.encode()):
        said = body(given)
        assert said.error is not None
        assert (said.status, said.error["code"]) == (400, "context_length_exceeded")
        assert said.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("part", ["<script ", "<", "<a", "<script>", "</", "<style>x</style "])
def test_a_page_of_tags_that_never_end_takes_no_time(part: str) -> None:
    said = linear(lambda n: body(("<html>" + part * n).encode(), status=500), 50_000)
    assert said.error is not None and said.repairs == {"error_html": 1}
