"""llama-cpp-python's deviations one by one, body and stream, of both of its chat logprobs.

Constructed after llama_cpp/llama.py and llama_chat_format.py at 0.3.35; what they were before pull
request #1788 is the completion's arrays as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.answers import Json, Said, ask, body, stream
from tests.conformance import check_completion_body, check_completion_stream
from tests.corpus import checked_request
from tests.fold import fold_completion
from tests.replay import body as translate
from tests.replay import stream as translate_pieces
from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.servers.known.llama_cpp_python import LLAMA_CPP_PYTHON
from wellspoken.adapters.servers.prepare import prepare

Token = tuple[bytes, float, list[tuple[bytes, float]]]
"""A token's bytes, its logprob and the best candidates."""
Spelling = Callable[[Sequence[Token]], Json]

SCORED = ask(logprobs=True, top_logprobs=3)
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
PLAIN: list[Token] = [
    (b"Hi", -0.25, [(b"Hi", -0.25), (b"Ho", -1.5)]),
    (b"!", -2.5, [(b".", -0.125), (b"?", -2.25)]),
]
SPLIT: list[Token] = [
    (b"caf", -0.5, [(b"caf", -0.5)]),
    (b"\xc3", -0.25, [(b"\xc3", -0.25), (b"\xe2", -0.75), (b"x", -1.0)]),
    (b"\xa9", -0.125, [(b"\xa9", -0.125), (b"\xa8", -3.0)]),
]


def text(data: bytes) -> str:
    """Return a token's text as the server decodes it: alone, without what is no UTF-8."""
    return data.decode(errors="ignore")


def arrays(tokens: Sequence[Token], offset: int = 0) -> Json:
    """Return a completion's logprobs: candidates keyed by text, then the token's own value."""
    tops = []
    for data, own, best in tokens:
        top = {text(name): value for name, value in best}
        tops.append({**top, text(data): own})
    return {
        "tokens": [text(data) for data, _, _ in tokens],
        "text_offset": [offset + len(data) for data, _, _ in tokens],
        "token_logprobs": [own for _, own, _ in tokens],
        "top_logprobs": tops,
    }


def entries(tokens: Sequence[Token]) -> Json:
    """Return the same as 0.3.3 and later have it in a chat answer."""
    given = arrays(tokens)
    columns = (given[name] for name in ("tokens", "token_logprobs", "top_logprobs"))
    rows = [
        {
            "token": token,
            "bytes": None,
            "logprob": own,
            "top_logprobs": [{"token": t, "logprob": v, "bytes": None} for t, v in top.items()],
        }
        for token, own, top in zip(*columns, strict=True)
    ]
    return {"content": rows, "refusal": None}


BOTH = pytest.mark.parametrize("spelling", [arrays, entries], ids=["legacy", "current"])


def whole(content: str, logprobs: Json | None, reason: str = "stop") -> Json:
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": reason}
    head = {"id": "chatcmpl-0123456789", "object": "chat.completion", "created": 1_760_000_000}
    return {**head, "model": "m", "choices": [choice], "usage": USAGE}


def chunk(delta: Json, logprobs: Json | None = None, reason: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
    head = {"id": "chatcmpl-0123456789", "model": "m", "created": 1_760_000_000}
    return {**head, "object": "chat.completion.chunk", "choices": [choice]}


def chunks(tokens: Sequence[Token], spelling: Spelling) -> list[Json]:
    """Return a stream with logprobs: a chunk a token, each one's text decoded alone."""
    parts = [chunk({"content": text(one[0])}, spelling([one])) for one in tokens]
    return [chunk({"role": "assistant"}), *parts, chunk({}, None, "stop")]


def both(tokens: Sequence[Token], spelling: Spelling, request: Json = SCORED) -> list[Said]:
    content = b"".join(data for data, _, _ in tokens).decode()
    return [
        body(whole(content, spelling(tokens)), request),
        stream(chunks(tokens, spelling), request),
    ]


@BOTH
def test_every_number_survives(spelling: Spelling) -> None:
    for said in both(PLAIN, spelling):
        assert said.rows == [("Hi", -0.25, [72, 105]), ("!", -2.5, [33])]
        assert said.tops == [
            [("Hi", -0.25), ("Ho", -1.5)],
            [(".", -0.125), ("?", -2.25), ("!", -2.5)],
        ]


@BOTH
def test_at_most_k_alternatives(spelling: Spelling) -> None:
    """The sampled token comes on top of the k that were asked for."""
    for said in both(PLAIN, spelling, ask(logprobs=True, top_logprobs=2)):
        assert said.tops[1] == [(".", -0.125), ("?", -2.25)]
    for said in both(PLAIN, spelling, ask(logprobs=True, top_logprobs=0)):
        assert said.tops == [[], []]


@BOTH
def test_a_split_character_in_a_body(spelling: Spelling) -> None:
    """The text is whole, and tells the bytes; candidates that read alike are one."""
    said = both(SPLIT[:1], spelling)[0]
    assert said.message["content"] == "caf"
    said = body(whole("café", spelling(SPLIT)), SCORED)
    assert said.message["content"] == "café"
    assert said.rows == [
        ("caf", -0.5, [99, 97, 102]),
        ("", -0.25, None),
        ("é", -0.125, [195, 169]),
    ]
    assert said.tops[1] == [("", -0.25), ("x", -1.0)]
    assert said.repairs["logprobs_bytes_from_content"] == 1


@BOTH
def test_a_split_character_in_a_stream_is_lost_but_not_its_numbers(spelling: Spelling) -> None:
    said = stream(chunks([*SPLIT, *PLAIN[:1]], spelling), SCORED)
    assert said.message["content"] == "cafHi"
    assert [row[1] for row in said.rows] == [-0.5, -0.25, -0.125, -0.25]
    assert said.rows[1] == ("", -0.25, None)


@BOTH
def test_the_tokens_of_a_stop_string_have_no_entries(spelling: Spelling) -> None:
    """The text ends before the stop string, the entries behind it."""
    said = body(whole("Hi", spelling(PLAIN)), {**SCORED, "stop": ["!"]})
    assert said.rows == [("Hi", -0.25, [72, 105])]
    assert said.repairs["logprobs_outside_content"] == 1


def test_a_stream_without_usage_gets_one() -> None:
    said = stream(chunks(PLAIN, entries), {**SCORED, "stream_options": {"include_usage": True}})
    assert said.answer["usage"]["completion_tokens"] == 2
    assert said.repairs["usage_missing"] == 1


def test_the_role_chunk_is_completed() -> None:
    said = stream([chunk({"role": "assistant"}), chunk({"content": "Hi"}), chunk({}, None, "stop")])
    assert said.repairs["role_chunk_incomplete"] == 1
    first = json.loads(said.raw.split(b"\n\n")[0].removeprefix(b"data: "))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}


def test_a_stream_that_breaks_off_is_a_failure() -> None:
    """An error of the model, such as a prompt that is too long, comes after the 200."""
    early, late = stream([], done=False), stream([chunk({"content": "Hi"})], done=False)
    for said in (early, late):
        assert said.error is not None and said.error["code"] == "upstream_cut"
    assert (early.status, early.raw) == (502, b"")


def test_errors_of_its_types_keep_their_status() -> None:
    message = "1 validation error:\n  {'type': 'list_type', 'loc': ('body', 'messages')}"
    error = {"message": message, "type": "internal_server_error", "param": None, "code": None}
    said = body({"error": error}, status=500)
    assert (said.status, said.error and said.error["type"]) == (500, "server_error")
    said = body({"detail": "Invalid API key"}, status=401)
    assert (said.status, said.error and said.error["code"]) == (502, "backend_auth_failed")


# --- /v1/completions ----------------------------------------------------------------------------

ASKED: Json = {"model": "m", "prompt": "Say ", "max_tokens": 3, "logprobs": 3}


def completion(said: str, logprobs: Json | None, reason: str | None, **more: Any) -> Json:
    choice = {"text": said, "index": 0, "logprobs": logprobs, "finish_reason": reason}
    head = {"id": "cmpl-0123456789", "object": "text_completion", "created": 1_760_000_000}
    return {**head, "model": "m", "choices": [choice], **more}


def completed(request: Json, answer: Json) -> tuple[Json, dict[str, int]]:
    """Return the first choice of a body, which is checked, and what was counted."""
    data = json.dumps(answer).encode()
    outcome = translate(request, 200, "application/json", data, "completions")
    assert check_completion_body(outcome.body, checked_request(request), None) == []
    found: Json = json.loads(outcome.body)["choices"][0]
    return found, outcome.repairs


def test_a_completions_numbers_survive() -> None:
    given = completion("Hi!", arrays(PLAIN), "length", usage=USAGE)
    found, _ = completed(ASKED, given)
    assert found["logprobs"] == {
        "tokens": ["Hi", "!"],
        "token_logprobs": [-0.25, -2.5],
        "top_logprobs": [{"Hi": -0.25, "Ho": -1.5}, {".": -0.125, "?": -2.25, "!": -2.5}],
        "text_offset": [4, 6],
    }


def test_echo_has_the_prompts_tokens_the_first_without_a_number() -> None:
    given = arrays([(b"Say", -1.0, []), (b" ", -0.75, [(b" ", -0.75)]), *PLAIN])
    given["token_logprobs"][0] = given["top_logprobs"][0] = None
    answer = completion("Say Hi!", given, "length", usage=USAGE)
    found, repairs = completed({**ASKED, "echo": True}, answer)
    assert found["text"] == "Say Hi!"
    assert found["logprobs"]["tokens"] == ["Say", " ", "Hi", "!"]
    assert found["logprobs"]["token_logprobs"] == [None, -0.75, -0.25, -2.5]
    assert found["logprobs"]["top_logprobs"][:2] == [None, {" ": -0.75}]
    assert found["logprobs"]["text_offset"] == [0, 3, 4, 6]
    assert "logprobs_unknown" not in repairs


def test_a_split_character_in_a_completion() -> None:
    found, repairs = completed(ASKED, completion("café", arrays(SPLIT), "stop", usage=USAGE))
    assert found["logprobs"]["tokens"] == ["caf", "", "é"]
    assert found["logprobs"]["token_logprobs"] == [-0.5, -0.25, -0.125]
    assert found["logprobs"]["text_offset"] == [4, 7, 7]
    assert repairs["logprobs_bytes_from_content"] == 1


def streamed(request: Json, parts: Sequence[Json]) -> tuple[Json, int]:
    """Return the first choice of a stream, which is checked, and how many chunks had a reason."""
    asked = {**request, "stream": True}
    pieces = [b"data: " + json.dumps(part).encode() + b"\n\n" for part in parts]
    outcome = translate_pieces(asked, [*pieces, b"data: [DONE]\n\n"], "completions")
    assert check_completion_stream(outcome.body, checked_request(asked), None) == []
    found: Json = fold_completion(outcome.body)["choices"][0]
    return found, outcome.body.count(b'"finish_reason":"') + outcome.body.count(b'_reason": "')


def test_a_completions_stream() -> None:
    parts = [completion(text(one[0]), arrays([one], 9), None) for one in PLAIN]
    found, reasons = streamed(ASKED, [*parts, completion("", None, "length")])
    assert (found["text"], found["finish_reason"], reasons) == ("Hi!", "length", 1)
    assert found["logprobs"]["token_logprobs"] == [-0.25, -2.5]
    assert found["logprobs"]["text_offset"] == [4, 6]


def test_the_limit_has_its_older_name() -> None:
    given = json.dumps(ask(max_completion_tokens=3, logprobs=True)).encode()
    sent = json.loads(prepare(LLAMA_CPP_PYTHON, decode_chat(given), model=None))
    assert (sent["max_tokens"], sent["top_logprobs"]) == (3, 1)
    assert "max_completion_tokens" not in sent
