"""Contract rule 12: every shape of an error becomes OpenAI's object, with the right status."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.answers import DONE, Said, ask, body, completion, data, end, role, say, stream
from tests.examples import examples
from tests.replay import body_as_stream, exchange
from tests.replay import stream as pieces
from wellspoken.adapters.events import Fault
from wellspoken.adapters.readers.near_openai import NearOpenAI
from wellspoken.adapters.repairs import faults
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.translate import StreamTranslator, translate_body

SAID = "Something is wrong."


def failed(said: Said) -> tuple[int, str, str, str | None, str | None]:
    """Return (status, message, type, param, code)."""
    assert said.error is not None
    error = said.error
    return said.status, error["message"], error["type"], error["param"], error["code"]


SHAPES: dict[str, tuple[Any, str | None, str | None, dict[str, int]]] = {
    "openai": (
        {"error": {"message": SAID, "type": "x", "param": "n", "code": "bad"}},
        "n",
        "bad",
        {},
    ),
    "vllm, fastchat: flat": (
        {"object": "error", "message": SAID, "type": "BadRequestError", "param": None, "code": 400},
        None,
        None,
        {"error_flat": 1, "error_code_int": 1},
    ),
    "tgi, ollama: a string": (
        {"error": SAID, "error_type": "validation"},
        None,
        None,
        {"error_string": 1},
    ),
    "fastapi: detail": ({"detail": SAID}, None, None, {"error_detail": 1}),
    "fastapi: detail with a code": (
        {"detail": SAID, "code": "bad"},
        None,
        "bad",
        {"error_detail": 1},
    ),
    "fastapi: detail, an object": (
        {"detail": {"msg": SAID, "code": "bad"}},
        None,
        "bad",
        {"error_detail": 1},
    ),
    "a message alone": ({"message": SAID}, None, None, {"error_message_only": 1}),
    "an error_message": ({"error_message": SAID}, None, None, {"error_message_only": 1}),
    "msg in an error": ({"error": {"msg": SAID}}, None, None, {}),
    "a code of digits": ({"error": {"message": SAID, "code": "400"}}, None, None, {}),
    "a code that is no status": (
        {"error": {"message": SAID, "code": 40304}},
        None,
        "40304",
        {"error_code_int": 1},
    ),
    "a code that is no code": ({"error": {"message": SAID, "code": True}}, None, None, {}),
    "a code that is a list": ({"error": {"message": SAID, "code": [1]}}, None, None, {}),
    "a param that is none": ({"error": {"message": SAID, "param": 7}}, None, None, {}),
    "white space": ({"error": {"message": f"  {SAID[:9]}\n\t{SAID[10:]} "}}, None, None, {}),
    "a JSON string": (SAID, None, None, {"error_message_only": 1}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_becomes_openais(name: str) -> None:
    payload, param, code, repairs = SHAPES[name]
    said = body(json.dumps(payload).encode(), status=400)
    assert failed(said) == (400, SAID, "invalid_request_error", param, code)
    assert said.repairs == repairs


def test_a_list_of_details_names_where() -> None:
    items = [
        {"loc": ["body", "messages", 0, "content"], "msg": "Field required", "type": "missing"},
        {"msg": "and this"},
        "and that",
    ]
    said = body(json.dumps({"detail": items}).encode(), status=422)
    wanted = "messages.0.content: Field required; and this; and that"
    assert failed(said) == (422, wanted, "invalid_request_error", "messages.0.content", None)


@pytest.mark.parametrize("payload", [{}, {"error": {}}, [], None, {"error": {"message": ""}}])
def test_an_error_that_says_nothing_says_where_to_look(payload: Any) -> None:
    said = body(json.dumps(payload).encode(), status=500)
    status, message, kind, _, _ = failed(said)
    assert (status, kind) == (500, "server_error")
    assert "500" in message and "see its log" in message


@pytest.mark.parametrize(
    ("text", "repair", "quoted"),
    [
        ("upstream connect error", "error_text", "upstream connect error"),
        ("", "error_text", "no text"),
        (
            "<html><head><style>a {}</style><script>x()</script></head><h1>502 Bad  Gateway</h1>",
            "error_html",
            ": 502 Bad Gateway.",
        ),
        ("\n <!doctype x><b>no</b>", "error_html", ": no."),
    ],
)
@pytest.mark.parametrize("status", [500, 503])
def test_text_and_html(text: str, repair: str, quoted: str, status: int) -> None:
    said = body(text.encode(), status=status)
    assert said.error is not None and quoted in said.error["message"]
    assert "<" not in said.error["message"] and "x()" not in said.error["message"]
    assert (said.status, said.error["type"]) == (status, "server_error")
    assert said.repairs == {repair: 1}


def test_a_message_of_any_length_is_cut() -> None:
    said = body(json.dumps({"error": "x" * 9_000}).encode(), status=400)
    assert said.error is not None and len(said.error["message"]) == 2_000


@pytest.mark.parametrize(
    ("status", "kept", "kind"),
    [
        (400, 400, "invalid_request_error"),
        (404, 404, "invalid_request_error"),
        (422, 422, "invalid_request_error"),
        (429, 429, "rate_limit_error"),
        (500, 500, "server_error"),
        (503, 503, "server_error"),
        (302, 502, "server_error"),
        (600, 502, "server_error"),
    ],
)
def test_a_status_is_kept_or_is_no_error(status: int, kept: int, kind: str) -> None:
    said = body(b'{"error": {"message": "x"}}', status=status)
    assert failed(said)[:3] == (kept, "x", kind)


@pytest.mark.parametrize("status", [401, 403])
def test_the_backends_key_is_ours_not_the_clients(status: int) -> None:
    said = body(b'{"error": {"message": "Invalid key", "code": "invalid_api_key"}}', status=status)
    code, message, kind, _, name = failed(said)
    assert (code, kind, name) == (502, "server_error", "backend_auth_failed")
    assert "Invalid key" in message and "--upstream-key" in message
    assert said.repairs == {"error_backend_key": 1}


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 2048 tokens.",
        "the request exceeds the available context size (2048 tokens)",
        "Prompt is too long: 5000 tokens",
        "exceed_context_size_error",
        "`inputs` tokens + `max_new_tokens` must be <= 2048",
        "longer than the max_model_len",
    ],
)
def test_context_overflow_has_openais_code(message: str) -> None:
    for payload in ({"error": {"message": message, "code": 400}}, {"detail": message}):
        said = body(json.dumps(payload).encode(), status=400)
        assert failed(said)[4] == "context_length_exceeded"


def test_context_overflow_by_its_type_or_code() -> None:
    by_type = {"error": {"message": "No.", "type": "exceed_context_size_error", "code": 400}}
    assert failed(body(json.dumps(by_type).encode(), status=400))[4] == "context_length_exceeded"
    fastchat = {"object": "error", "message": "No.", "code": 40303}
    assert failed(body(json.dumps(fastchat).encode(), status=400))[4] == "context_length_exceeded"


def test_an_unknown_model() -> None:
    said = body(b'{"object":"error","message":"The model `x` does not exist."}', status=404)
    assert failed(said)[4] == "model_not_found"
    said = body(b'{"error": "model \\"x\\" not found, try pulling it first"}', status=404)
    assert failed(said)[4] == "model_not_found"
    said = body(b'{"detail": "Not Found"}', status=404)
    assert failed(said)[4] is None


# --- inside a 200 -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        ({"error": {"message": SAID, "code": 503}}, 503),
        ({"error": {"message": SAID, "code": "503"}}, 503),
        ({"error": {"message": SAID, "code": 200}}, 502),
        ({"error": {"message": SAID, "code": "bad"}}, 502),
        ({"error": {"message": SAID}}, 502),
        ({"error": {"message": SAID, "status": 429}}, 429),
        ({"object": "error", "message": SAID, "code": 400}, 400),
        ({"detail": SAID}, 502),
        ({"error": SAID}, 502),
    ],
    ids=json.dumps,
)
def test_an_error_inside_a_200_takes_its_own_code(payload: Any, status: int) -> None:
    for said in (
        body(json.dumps(payload).encode()),
        stream([payload]),
        stream([role(), say("Hi"), payload]),
    ):
        assert said.error is not None and said.error["message"] == SAID
        assert said.repairs["error_in_200"] == 1
        assert DONE not in said.raw
    assert body(json.dumps(payload).encode()).status == status
    assert stream([payload]).status == status


@pytest.mark.parametrize(
    "payload",
    [
        7,
        "text",
        [],
        {"x": 1},
        {"choices": []},
        {**completion(), "choices": []},
        {"choices": "x"},
        None,
    ],
    ids=json.dumps,
)
def test_a_200_that_is_no_completion(payload: Any) -> None:
    said = body(json.dumps(payload).encode())
    status, message, kind, _, code = failed(said)
    assert (status, kind, code) == (502, "server_error", "upstream_not_a_completion")
    assert "Check that its URL" in message
    assert 'expected a list "choices" of objects with "message"' in message


def test_what_was_not_understood_names_backend_and_request() -> None:
    asked = exchange(ask())
    asked = replace(asked, origin="backend vllm, request req_7")
    answer = translate_body(asked, 200, "application/json", b'{"x": 1}')
    assert b"answer (backend vllm, request req_7) is not a chat completion" in answer.body


@pytest.mark.parametrize("text", [b"<html>hi</html>", b"pong", b"", b'{"choices": [', b"\xff\xfe"])
def test_a_200_that_is_no_json(text: bytes) -> None:
    said = body(text)
    assert said.status == 502
    assert said.error is not None and "Check that the backend's URL" in said.error["message"]


def test_a_200_that_nests_too_deeply() -> None:
    deep = b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert body(deep).status == 502
    assert stream([deep]).status == 502


@pytest.mark.parametrize("payload", [b"7", b'"text"', b"[]", b"nonsense"])
def test_a_chunk_of_nonsense_ends_the_stream(payload: bytes) -> None:
    said = stream([role(), say("Hi"), payload, say("more"), end()])
    assert said.error is not None and said.error["type"] == "server_error"
    assert said.message["content"] == "Hi"
    assert said.raw.endswith(b"}}\n\n") and DONE not in said.raw


def test_a_chunk_without_choices_is_dropped_and_counted() -> None:
    said = stream([role(), {"ping": 1}, say("Hi"), end()])
    assert said.message["content"] == "Hi"
    assert said.repairs["chunk_without_choices"] == 1


# --- in a stream --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b'error: {"message": "x is wrong", "code": 400}\n\n', "x is wrong"),  # llama.cpp
        (b'event: error\ndata: {"message": "x is wrong"}\n\n', "x is wrong"),
        (b"event: error\ndata: x is wrong\n\n", "x is wrong"),
        (b"error: x is wrong\n\n", "x is wrong"),
    ],
)
def test_error_events(event: bytes, message: str) -> None:
    outcome = pieces(ask(stream=True), [data(role()), data(say("Hi")), event, data(end())])
    assert outcome.fault is not None and outcome.fault["message"] == message
    assert outcome.body.count(b'"error"') == 1 and DONE not in outcome.body
    assert outcome.body.endswith(b"\n\n")
    assert ("error_sse_field" in outcome.repairs) == event.startswith(b"error:")


def test_an_error_before_the_first_byte_is_no_stream() -> None:
    said = stream([{"error": {"message": SAID, "code": 404}}])
    assert (said.status, said.raw) == (404, b"")
    assert said.error is not None and said.error["message"] == SAID


def test_an_event_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    translator = StreamTranslator(exchange(ask(stream=True)))
    reader = translator.sources[0].reader
    assert isinstance(reader, NearOpenAI)
    reader.sse.cap = 2_000
    translator.feed(data(role()))
    out = translator.feed(data(say("Hi")) + data(say("x" * 3_000)))
    assert b'"Hi"' in out and b"upstream_event_too_large" in out
    assert translator.done and translator.fault is not None
    assert translator.fault.status == 502


def test_a_connection_that_fails() -> None:
    translator = StreamTranslator(exchange(ask(stream=True)))
    assert b'"Hi"' in translator.feed(data(role()) + data(say("Hi")))
    out = translator.fail(Fault(502, "The connection broke.", code="backend_error"))
    assert out.startswith(b'data: {"error":') and translator.done
    assert translator.close() == b""


@pytest.mark.parametrize("payload", [{"error": {"message": SAID}}, {"choices": []}, 7])
def test_an_error_body_where_a_stream_was_asked_for(payload: Any) -> None:
    found = body_as_stream(
        exchange(ask(stream=True)), "application/json", json.dumps(payload).encode()
    )
    assert not isinstance(found, bytes) and found.status == 502


@pytest.mark.parametrize(
    ("payload", "is_one"),
    [
        ([], False),
        ({"error": None}, False),
        ({"choices": [1], "message": "x"}, False),
        ({"usage": {"x": 1}, "message": "x"}, False),
        ({"choices": [1], "error": "x"}, True),
        ({"errors": ["x"]}, True),
        ({"error_type": "x"}, True),
        ({"object": "error"}, True),
    ],
    ids=json.dumps,
)
def test_what_an_error_is(payload: Any, is_one: bool) -> None:
    assert faults.is_error(payload) is is_one


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["error", "message", "code", "detail", "object", "choices", "type", "loc"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=examples(200), deadline=None, database=None)
@given(JSON, st.sampled_from([200, 302, 400, 401, 404, 429, 500, 599, 600]))
def test_any_json_is_an_answer_or_openais_error(payload: Any, status: int) -> None:
    said = body(json.dumps(payload).encode(), status=status)  # checks the error object
    assert said.status == 200 or 400 <= said.status <= 599


@settings(max_examples=examples(100), deadline=None, database=None)
@given(st.binary(max_size=40), st.sampled_from([200, 500]))
def test_any_bytes_are_openais_error(raw: bytes, status: int) -> None:
    assert body(raw, status=status).status in (500, 502)


@settings(max_examples=examples(150), deadline=None, database=None)
@given(st.lists(JSON, max_size=4))
def test_a_stream_of_any_json_ends(parts: list[Any]) -> None:
    said = stream([role(), say("Hi"), *parts, end()])
    assert (said.error is None) == said.raw.endswith(DONE)


def test_a_fault_that_names_no_code_has_none() -> None:
    context = Context(exchange(ask()))
    fault = faults.fault(400, "x", None, None, "", context)
    assert (fault.code, fault.param, fault.type) == (None, None, "invalid_request_error")
    assert completion()["choices"]  # what a body is: no error
    assert not faults.is_error(completion())
