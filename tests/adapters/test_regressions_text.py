"""Completions that were once translated wrongly; each with the source of its shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance import check_completion_body, check_completion_stream
from tests.corpus import Dialect, checked_request
from tests.fold import fold_completion
from tests.linear import linear
from tests.replay import SPLITS, Outcome
from tests.replay import body as translate
from tests.replay import stream as translate_pieces

Json = dict[str, Any]
HEAD = {
    "id": "cmpl-0123456789",
    "object": "text_completion",
    "created": 1_741_570_283,
    "model": "m",
}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
PROMPT = "Say: "


def ask(**more: Any) -> Json:
    return {"model": "m", "prompt": PROMPT, "logprobs": 2, **more}


def piece(text: Any, logprobs: Any = None, reason: Any = None, **more: Any) -> Json:
    choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": reason}
    return {**HEAD, "choices": [{**choice, **more}]}


def arrays(tokens: Any, numbers: Any, tops: Any = None, **more: Any) -> Json:
    return {"tokens": tokens, "token_logprobs": numbers, "top_logprobs": tops, **more}


def body(text: Any, logprobs: Any, request: Json | None = None) -> Json:
    """Return the choice that a body's text and logprobs become, checked."""
    request = request or ask()
    raw = json.dumps({**piece(text, logprobs, "stop"), "usage": USAGE}).encode()
    outcome = translate(request, 200, "application/json", raw, "completions")
    assert outcome.status == 200, outcome
    assert check_completion_body(outcome.body, checked_request(request)) == []
    choice: Json = json.loads(outcome.body)["choices"][0]
    return choice


def sse(*chunks: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)


def streamed(
    *chunks: Any, request: Json | None = None, dialect: Dialect = "completions"
) -> tuple[Outcome, Json]:
    """Return what a stream becomes and the choice that it folds to, checked, however it is cut."""
    request = {**(request or ask()), "stream": True}
    raw = sse(*chunks) + b"data: [DONE]\n\n"
    outcome = translate_pieces(request, [raw], dialect)
    assert outcome.status == 200, outcome
    assert check_completion_stream(outcome.body, checked_request(request)) == []
    for split in SPLITS.values():
        assert translate_pieces(request, split(raw), dialect) == outcome
    return outcome, fold_completion(outcome.body)["choices"][0]


def rows(choice: Json) -> list[tuple[Any, ...]]:
    """Return (token, number, alternatives) of each position."""
    given = choice["logprobs"]
    names = ("tokens", "token_logprobs", "top_logprobs")
    return list(zip(*(given[name] for name in names), strict=True))


# Tokens that lack the space they begin with: a sentencepiece token decoded alone (TensorRT-LLM's
# create_completion_logprobs, FastChat's inference.py).


def test_tokens_without_their_spaces_keep_their_numbers() -> None:
    tops = [{"Hi": -0.5, "Yo": -1.0}, {"you": -0.25}, {",": -0.125}, {"all": -2.0}]
    given = arrays(["Hi", "you", ",", "all"], [-0.5, -0.25, -0.125, -2.0], tops)
    assert rows(body(" Hi you, all", given)) == [
        (" Hi", -0.5, {" Hi": -0.5, "Yo": -1.0}),
        (" you", -0.25, {" you": -0.25}),
        (",", -0.125, {",": -0.125}),
        (" all", -2.0, {" all": -2.0}),
    ]


def test_a_streamed_token_without_its_space_keeps_its_number() -> None:
    chunks = [piece(f" {x}", arrays([x], [n])) for x, n in (("Hi", -0.5), ("you", -0.25))]
    outcome, choice = streamed(*chunks, piece("", None, "stop"))
    assert choice["logprobs"]["token_logprobs"] == [-0.5, -0.25]
    assert choice["logprobs"]["tokens"] == [" Hi", " you"]
    assert outcome.repairs["logprobs_space_restored"] == 2


def test_a_text_without_the_space_gets_none() -> None:
    tokens = body("a b c", arrays(["a", "b", " ", "c"], [-1.0, -2.0, -3.0, -4.0]))["logprobs"]
    assert tokens["tokens"] == ["a", " b", " ", "c"]
    assert tokens["token_logprobs"] == [-1.0, -2.0, -3.0, -4.0]


def test_a_long_answer_without_spaces_is_linear() -> None:
    def work(size: int) -> Json:
        words = [f"w{n % 97}" for n in range(size)]
        given = arrays(words, [-0.5] * size)
        return body(" ".join(words), given, ask(max_tokens=99_999))

    assert linear(work, 1000)["logprobs"]["tokens"][1] == " w1"


# Streams whose chunks have the logprobs of all chunks before (FastChat's openai_api_server.py).


def test_repeated_arrays_are_read_once() -> None:
    tokens, numbers = ["the", " the", " the"], [-0.5, -0.25, -1.0]
    chunks = [piece(tokens[n], arrays(tokens[: n + 1], numbers[: n + 1])) for n in range(3)]
    outcome, choice = streamed(*chunks, piece("", arrays(tokens, numbers), "stop"))
    assert choice["logprobs"]["token_logprobs"] == numbers
    assert outcome.repairs["logprobs_repeated"] == 3


def test_a_chunk_like_the_one_before_is_no_repetition() -> None:
    same = arrays(["a", "a"], [-0.0, -0.0])
    outcome, choice = streamed(piece("aa", same), piece("aa", same), piece("", None, "stop"))
    assert choice["text"] == "aaaa" and len(choice["logprobs"]["tokens"]) == 4
    assert "logprobs_repeated" not in outcome.repairs


def test_a_native_last_event_like_the_first_is_no_repetition() -> None:
    entry = {"id": 5, "token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": []}
    event = {"content": "a", "stop": False, "completion_probabilities": [entry]}
    last = {**event, "stop": True, "stop_type": "limit"}
    outcome, choice = streamed(event, last, dialect="llamacpp")
    assert choice["logprobs"]["token_logprobs"] == [-0.5, -0.5]
    assert "native_logprobs_repeated" not in outcome.repairs


# Shapes of the alternatives.


@pytest.mark.parametrize(
    "tops",
    [
        [[{"token": "Hi", "logprob": -0.5}, {"token": "Yo", "logprob": -1.0}]],
        [[["Hi", -0.5], ["Yo", -1.0]]],
        [{"Hi": {"logprob": -0.5}, "Yo": {"logprob": -1.0}}],
        [{"7": {"logprob": -0.5, "decoded_token": "Hi"}, "8": {"logprob": -1.0, "token": "Yo"}}],
        {"Hi": -0.5, "Yo": -1.0},
        [{"token": "Hi", "logprob": -0.5}, {"token": "Yo", "logprob": -1.0}],
    ],
    ids=["objects", "pairs", "map of objects", "by id", "one map", "objects of one token"],
)
def test_alternatives_of_any_shape_keep_their_numbers(tops: Any) -> None:
    choice = body("Hi", arrays(["Hi"], [-0.5], tops))
    assert rows(choice) == [("Hi", -0.5, {"Hi": -0.5, "Yo": -1.0})]


def test_one_object_a_token_is_its_alternative() -> None:
    tops = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.0, "id": 9}]
    choice = body("ab", arrays(["a", "b"], [-0.5, -1.0], tops))
    assert rows(choice) == [("a", -0.5, {"a": -0.5}), ("b", -1.0, {"b": -1.0})]


def test_tokens_that_are_objects_are_read() -> None:
    tokens = [{"token": "a", "logprob": -0.5, "id": 4}, {"token": "b", "logprob": -1.0}]
    choice = body("ab", {"tokens": tokens})
    assert rows(choice) == [("a", -0.5, {"a": -0.5}), ("b", -1.0, {"b": -1.0})]


def test_ids_among_ids_are_ids() -> None:
    """mlx-lm: `tokens` are ids and the alternatives' names, too."""
    given = arrays([17, 5], [-0.5, -1.0], [{"17": -0.5, "3": -2.0}, {"5": -1.0}])
    assert rows(body("Hi you", given)) == [
        ("token_id:17", -0.5, {"token_id:17": -0.5, "token_id:3": -2.0}),
        ("token_id:5", -1.0, {"token_id:5": -1.0}),
    ]


def test_an_id_takes_its_text_from_the_alternative_of_the_same_id() -> None:
    """mlx-lm's `_format_top_logprobs` since 0.30: {id, token, logprob}, raw vocabulary text."""
    tops = [
        [{"id": 17, "token": "Hi", "logprob": -0.5}],
        [{"id": 3, "token": "!", "logprob": -0.25}, {"id": 5, "token": "Ġyou", "logprob": -1.0}],
    ]
    assert rows(body("Hi you", arrays([17, 5], [-0.5, -1.0], tops))) == [
        ("Hi", -0.5, {"Hi": -0.5}),
        (" you", -1.0, {"!": -0.25, " you": -1.0}),
    ]


def test_an_object_of_native_probabilities_is_a_list_of_one() -> None:
    given = {"content": "Hi", "probs": [{"tok_str": "Hi", "prob": 0.5}]}
    raw = json.dumps({"content": "Hi", "stop": True, "completion_probabilities": given}).encode()
    outcome = translate(ask(), 200, "application/json", raw, "llamacpp")
    choice = json.loads(outcome.body)["choices"][0]
    assert choice["logprobs"]["token_logprobs"] == [pytest.approx(-0.6931471805599453)]


# Echo with logprobs of the answer alone (TensorRT-LLM, text-generation-webui).

ECHO = ask(echo=True)


def failed(request: Json, *chunks: Any) -> tuple[Any, dict[str, int]]:
    outcome = translate_pieces({**request, "stream": True}, [sse(*chunks)], "completions")
    assert outcome.fault is not None
    return outcome.fault["code"], outcome.repairs


def test_logprobs_that_leave_the_prompt_out_fail() -> None:
    given = arrays([" Hi", " you"], [-0.5, -1.0])
    raw = json.dumps({**piece("Say: Hi you", given, "stop"), "usage": USAGE}).encode()
    outcome = translate(ECHO, 200, "application/json", raw, "completions")
    assert outcome.status == 502 and outcome.repairs["echo_unscored"] == 1
    assert json.loads(outcome.body)["error"]["code"] == "echo_ignored"


@pytest.mark.parametrize(
    "chunks",
    [
        [piece("Say: Hi", arrays(["Hi"], [-0.5]))],
        [piece("Say: "), piece("Hi", arrays(["Hi"], [-0.5]))],
        [piece("Say:"), piece(" Hi"), piece(" you", arrays(["ĠHi", "Ġyou"], [-0.5, -1.0]))],
    ],
    ids=["in one chunk", "the prompt first", "raw and late"],
)
def test_streamed_logprobs_that_leave_the_prompt_out_fail(chunks: list[Json]) -> None:
    code, repairs = failed(ECHO, *chunks)
    assert code == "echo_ignored" and repairs["echo_unscored"] == 1


def test_an_answer_that_repeats_its_prompt_is_scored() -> None:
    given = arrays(["Say", ":", " ", "Say"], [None, -1.0, -2.0, -0.5], None)
    outcome, choice = streamed(piece("Say: Say", given), piece("", None, "stop"), request=ECHO)
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -2.0, -0.5]
    assert "echo_unscored" not in outcome.repairs


def test_an_echo_without_any_logprobs_is_null() -> None:
    _, choice = streamed(piece("Say: "), piece("Hi"), piece("", None, "stop"), request=ECHO)
    assert (choice["text"], choice["logprobs"]) == ("Say: Hi", None)


def test_an_echo_that_has_to_wait_is_linear() -> None:
    def work(size: int) -> bytes:
        raw = sse(piece(PROMPT), *[piece("x") for _ in range(size)], piece("", None, "stop"))
        return translate_pieces({**ECHO, "stream": True}, [raw], "completions").body

    assert linear(work, 1500).count(b'"x"') == 1500


def test_an_echoed_null_is_no_repair_on_the_tolerant_path_either() -> None:
    """SGLang: `metadata` beside the choices is unknown to the strict Structs."""
    given = arrays(["<s>", "Say", ":", " "], [None, -1.0, -2.0, -0.5], [None, {}, {}, {}])
    raw = {**piece("Say: ", given, "length"), "usage": USAGE, "metadata": {"weight_version": "1"}}
    outcome = translate(ECHO, 200, "application/json", json.dumps(raw).encode(), "completions")
    assert outcome.repairs == {"extra_field_dropped": 1}


# Text.


def test_the_end_token_of_a_stream_is_no_text() -> None:
    """TGI's router/src/server.rs: the last chunk's text is its token's."""
    last = piece("</s>", None, "eos_token")
    outcome, choice = streamed(piece("Hi"), last, request={"model": "m", "prompt": PROMPT})
    assert choice["text"] == "Hi" and outcome.repairs["text_end_token"] == 1


@pytest.mark.parametrize(("text", "reason"), [("</s>", "stop"), (" end", "eos_token")])
def test_other_text_beside_a_reason_stays(text: str, reason: str) -> None:
    _, choice = streamed(
        piece("Hi"), piece(text, None, reason), request={**ask(), "logprobs": None}
    )
    assert choice["text"] == f"Hi{text}"


@pytest.mark.parametrize("offsets", [None, [-1, -1], ["0", None], [], 7])
def test_offsets_of_any_kind_are_made_anew(offsets: Any) -> None:
    """MLC-LLM sends null, SGLang -1."""
    choice = body("ab", arrays(["a", "b"], [-1.0, -2.0], text_offset=offsets))
    assert choice["logprobs"]["text_offset"] == [5, 6]


@pytest.mark.parametrize("empty", [{}, arrays([], [], [], text_offset=[])])
def test_empty_logprobs_are_null(empty: Json) -> None:
    """vLLM 0.2.7 has {} on its last chunk."""
    chunks = [piece("a", arrays(["a"], [-1.0], [{"a": -1.0}])), piece("", empty, "stop")]
    outcome, choice = streamed(*chunks)
    assert choice["logprobs"]["tokens"] == ["a"]
    assert outcome.repairs["logprobs_empty"] == 1


def test_a_single_choice_of_another_number_has_the_prompt() -> None:
    """Contract rule 5: a single choice 1 is choice 0, and its prompt the one there is."""
    _, choice = streamed(
        piece("Hi", index=1),
        piece("", None, "stop", index=1),
        request={"model": "m", "prompt": PROMPT, "echo": True},
    )
    assert (choice["index"], choice["text"]) == (0, "Say: Hi")


# llama.cpp before 2025-01, and llamafile: POST /v1/completions is POST /completion.

NATIVE = {"content": "Hi", "stop": True, "stopped_limit": True}
COUNTS = {"tokens_predicted": 1, "tokens_evaluated": 3}


def test_a_native_body_is_read_where_a_completion_was_asked_for() -> None:
    probs = [{"content": "Hi", "probs": [{"tok_str": "Hi", "prob": 0.5}]}]
    raw = json.dumps({**NATIVE, **COUNTS, "completion_probabilities": probs}).encode()
    outcome = translate(ask(), 200, "application/json", raw, "completions")
    assert check_completion_body(outcome.body, checked_request(ask())) == []
    answer = json.loads(outcome.body)
    assert answer["choices"][0]["text"] == "Hi" and answer["usage"]["total_tokens"] == 4
    assert outcome.repairs["native_answer"] == 1


@pytest.mark.parametrize("before", [b"", b": ping\n\n"])
def test_a_native_stream_is_read_where_a_completion_was_asked_for(before: bytes) -> None:
    request = {"model": "m", "prompt": PROMPT, "stream": True}
    raw = before + sse({"content": "Hi", "stop": False}, {**NATIVE, "content": "", **COUNTS})
    outcome = translate_pieces(request, [raw], "completions")
    assert check_completion_stream(outcome.body, checked_request(request)) == []
    choice = fold_completion(outcome.body)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hi", "length")
    for split in SPLITS.values():
        assert translate_pieces(request, split(raw), "completions") == outcome


def test_a_stream_without_an_event_is_not_waited_for_without_end() -> None:
    request = {"model": "m", "prompt": PROMPT, "stream": True}
    raw = b": ping\n\n" * 20_000 + sse(piece("Hi"), piece("", None, "stop"))
    outcome = translate_pieces(
        request, (raw[n : n + 9] for n in range(0, len(raw), 9)), "completions"
    )
    assert fold_completion(outcome.body)["choices"][0]["text"] == "Hi"
