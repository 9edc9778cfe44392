"""Token ids come under vLLM's names, in vLLM's places; a list that may lack one is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import native, replay
from tests.answers import (
    TOOL,
    Json,
    Said,
    ask,
    body,
    body_of,
    call,
    choice,
    chunk,
    completion,
    end,
    entry,
    lp,
    message,
    role,
    say,
    stream,
    stream_of,
)
from tests.conforming_completions import body as text_body
from tests.conforming_completions import choice as text_choice
from tests.conforming_completions import end as text_end
from tests.conforming_completions import piece
from tests.fakes.upstream import DONE, event
from tests.fold import chunks_of
from tests.replay import body as translate
from wellspoken.adapters.events import Event, Extra

NAMES = ["token_ids", "response_token_ids", "completion_token_ids", "output_ids", "gen_tokens"]


def asked(**more: Any) -> Json:
    return ask(return_token_ids=True, **more)


def counting(completed: int) -> Json:
    return {"prompt_tokens": 3, "completion_tokens": completed, "total_tokens": 3 + completed}


def token(id: int, text: str, *, top: bool = True) -> Json:
    """One entry of llama.cpp's: a token with its id, and itself as the only alternative."""
    own = {"id": id, "token": text, "bytes": list(text.encode()), "logprob": -0.5}
    return {**own, "top_logprobs": [dict(own)] if top else []}


def verbose(*ids: int) -> Json:
    return {"__verbose": {"content": "", "tokens": list(ids), "prompt": "<s>hi"}}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("inside", [False, True], ids=["choice", "message"])
def test_a_bodys_ids_have_one_name_and_place(name: str, inside: bool) -> None:
    told = {name: [7, 8]}
    given = choice(message=message("Hi", **told)) if inside else choice(**told)
    said = body_of(given, asked())
    assert said.choice["token_ids"] == [7, 8]
    assert [key for key in (*said.choice, *said.message) if key in NAMES] == ["token_ids"]
    assert ("token_ids_renamed" in said.repairs) == (inside or name != "token_ids")
    assert "token_ids_missing" not in said.repairs


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("inside", [False, True], ids=["choice", "delta"])
def test_a_streams_ids_have_one_name_and_place(name: str, inside: bool) -> None:
    parts = [role()]
    for text, ids in (("H", [7]), ("i", [8, 9])):
        part = chunk({"content": text, **({name: ids} if inside else {})})
        part["choices"][0].update({} if inside else {name: ids})
        parts.append(part)
    said = stream([*parts, end()], asked())
    told = [x["choices"][0].get("token_ids") for x in chunks_of(said.raw)]
    assert told == [None, [7], [8, 9], None]
    assert name == "token_ids" or name.encode() not in said.raw
    assert "token_ids_missing" not in said.repairs


def test_a_chats_prompt_is_told_once_on_the_answer() -> None:
    two = [choice(index=n, token_ids=[n], prompt_token_ids=[1, 2, 3]) for n in range(2)]
    said = body(completion(*two), asked(n=2))
    assert said.answer["prompt_token_ids"] == [1, 2, 3]
    assert [x.get("prompt_token_ids") for x in said.answer["choices"]] == [None, None]
    assert [x["token_ids"] for x in said.answer["choices"]] == [[0], [1]]
    assert said.repairs == {"token_ids_renamed": 2}


def test_a_streamed_prompt_is_told_on_the_first_chunk() -> None:
    said = stream([{**role(), "prompt_token_ids": [1, 2]}, say("Hi"), end()], asked())
    assert [x.get("prompt_token_ids") for x in chunks_of(said.raw)] == [[1, 2], None, None]


def test_a_completions_prompt_is_told_on_its_choice() -> None:
    given = text_body(text_choice(token_ids=[5]), prompt_token_ids=[1, 2])
    request = {"model": "m", "prompt": "a", "return_token_ids": True}
    outcome = translate(request, 200, "application/json", encoded(given), "completions")
    assert b'"prompt_token_ids":[1,2],"token_ids":[5]' in outcome.body
    assert outcome.repairs["token_ids_renamed"] == 1


def encoded(value: Json) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("name", [*NAMES, "prompt_token_ids", "__verbose"])
def test_what_nobody_asked_for_is_not_there(name: str) -> None:
    told: Json = verbose(7) if name == "__verbose" else {name: [7]}
    said = body(completion(choice(**told), **told))
    assert name.encode() not in said.raw and b"token_ids" not in said.raw
    assert not {x for x in said.repairs if x.startswith("token_ids")}


def test_llamacpps_own_answer_tells_the_tokens() -> None:
    said = body(completion(choice("é"), **verbose(198, 172, 2)), asked())
    assert said.choice["token_ids"] == [198, 172, 2]
    assert b"__verbose" not in said.raw
    assert said.repairs == {"token_ids_verbose": 1}


def test_of_several_choices_it_tells_one() -> None:
    two = [choice(index=0), choice(index=1)]
    said = body(completion(*two, **verbose(7)), asked(n=2))
    assert b'"token_ids"' not in said.raw
    assert said.repairs == {"token_ids_missing": 2, "extra_field_dropped": 1}


@pytest.mark.parametrize("odd", [None, {}, {"tokens": None}, {"tokens": ["a"]}, {"tokens": [True]}])
def test_an_odd_own_answer_tells_nothing(odd: Any) -> None:
    said = body(completion(__verbose=odd), asked())
    assert b'"token_ids"' not in said.raw
    assert said.repairs["token_ids_missing"] == 1


@pytest.mark.parametrize("wants", [False, True], ids=["alone", "beside logprobs"])
def test_entries_tell_the_tokens_if_they_are_as_many(wants: bool) -> None:
    rows = lp(token(5, "H"), token(6, "i"), token(2, ""))
    request = asked(logprobs=True, top_logprobs=1) if wants else asked()
    said = body(completion(choice(logprobs=rows), usage=counting(3)), request)
    assert said.choice["token_ids"] == [5, 6, 2]
    assert said.repairs["token_ids_from_entries"] == 1
    assert (said.choice["logprobs"] is None) != wants
    assert b'"id":5' not in said.raw


@pytest.mark.parametrize(
    ("rows", "content", "size"),
    [
        ([token(172, "é")], "é", 2),  # one entry of two tokens (llama.cpp)
        ([token(5, "Ho")], "Hi", 1),  # the best token in the sampled one's place (mlx-lm)
        ([entry("Hi")], "Hi", 1),  # no ids
        ([token(5, "H"), entry("i")], "Hi", 2),
    ],
)
def test_entries_that_may_lack_a_token_tell_nothing(
    rows: list[Json], content: str, size: int
) -> None:
    given = completion(choice(content, logprobs=lp(*rows)), usage=counting(size))
    said = body(given, asked(logprobs=True, top_logprobs=1), waived=["tiling"])
    assert "token_ids" not in said.choice
    assert said.repairs["token_ids_missing"] == 1


@pytest.mark.parametrize("odd", ["7", 7, True, {"ids": [7]}, ["token_id:7"], [[7]], [7.5], [None]])
@pytest.mark.parametrize("streams", [False, True])
def test_what_is_no_list_of_ids_is_told_to_nobody(odd: Any, streams: bool) -> None:
    """A client adds lists up. Mutants: a stream's are not looked at, a prompt's are not."""
    keys: Json = {"token_ids": odd, "prompt_token_ids": odd}
    if streams:
        part = chunk({"content": "Hi"}) | {"prompt_token_ids": odd}
        part["choices"][0]["token_ids"] = odd
        said = stream_of(part, asked=asked())
    else:
        said = body(completion(choice(**keys)) | {"prompt_token_ids": odd}, asked())
    assert b"token_ids" not in said.raw
    assert "token_ids_missing" in said.repairs


def test_a_stream_without_ids_says_so() -> None:
    said = stream_of(say("Hi"), asked=asked())
    assert said.repairs == {"token_ids_missing": 1}


def past_stop(rows: list[Json], ids: list[int], content: str, stop: str) -> Said:
    given = completion(
        choice(content, logprobs=lp(*rows)), usage=counting(len(ids)), **verbose(*ids)
    )
    return body(given, asked(logprobs=True, top_logprobs=1, stop=stop))


@pytest.mark.parametrize(
    ("stop", "kept"),
    [
        ("b", [3, 4]),  # within a token: it counts
        ("c", [3, 4, 5]),
        ("é", [3, 4, 5, 198, 172]),  # of two tokens, of which one has an entry
        ("cé", [3, 4, 5, 198, 172]),
        ("x", [3, 4, 5, 198, 172, 6, 2]),
        ("none", [3, 4, 5, 198, 172, 6, 2]),
    ],
)
def test_ids_end_with_the_stop_string(stop: str, kept: list[int]) -> None:
    rows = [token(3, "a"), token(4, "bb"), token(5, "c"), token(172, "é"), token(6, "x!")]
    ids = [3, 4, 5, 198, 172, 6, 2]
    if stop == "x":
        kept = kept[:-1]
    said = past_stop([*rows, token(2, "")], ids, "abbcéx!", stop)
    assert said.choice["token_ids"] == kept


def test_ids_whose_end_is_not_sure_are_none() -> None:
    """Two bytes of one character are the same token, and but one of them has an entry."""
    rows = [token(7, "a"), token(9, "\U0001f7df"), token(3, "b")]
    said = past_stop(rows, [7, 240, 9, 9, 9, 3], "a\U0001f7dfb", "\U0001f7df")
    assert "token_ids" not in said.choice
    assert said.repairs["token_ids_missing"] == 1


def test_ids_of_a_text_that_ends_with_its_stop_string_stay() -> None:
    request = asked(stop="i", include_stop_str_in_output=True)
    said = body_of(choice("Hi", token_ids=[7, 8]), request, waived=["stop"])
    assert said.choice["token_ids"] == [7, 8]


def test_ids_of_a_text_that_goes_on_are_none_without_entries() -> None:
    said = body_of(choice("Hi you", token_ids=[7, 8]), asked(stop="i"))
    assert "token_ids" not in said.choice
    assert said.repairs == {"stop_enforced": 1, "token_ids_missing": 1}


def test_a_streams_ids_end_with_the_stop_string() -> None:
    parts = []
    for place, text in enumerate("abc"):
        parts.append(say(text))
        parts[-1]["choices"][0]["token_ids"] = [place]
    said = stream_of(*parts, asked=asked(stop="b"))
    told = [x["choices"][0].get("token_ids") or [] for x in chunks_of(said.raw)]
    assert [id for ids in told for id in ids] == [0, 1]


@pytest.mark.parametrize("last", ["end", "call", "refusal"])
def test_ids_that_leave_with_held_text_are_not_said_again(last: str) -> None:
    """Text that may begin a stop string leaves before what ends it. Mutant: raw chunks pass."""
    begin = call("f", "", index=0)
    others: dict[str, Json] = {"call": {"tool_calls": [begin]}, "refusal": {"refusal": "no"}}
    parts = [role(), say("a"), *([chunk(others[last])] if last in others else []), end()]
    for place, part in enumerate(parts[1:]):
        part["choices"][0]["token_ids"] = [place]
    tools: Json = {"tools": [TOOL]} if last == "call" else {}
    said = stream(parts, asked(stop="ab", **tools))
    told = [x["choices"][0].get("token_ids") or [] for x in chunks_of(said.raw)]
    assert [id for ids in told for id in ids] == list(range(len(parts) - 1))


def test_a_completions_ids_that_leave_with_held_text_are_not_said_again() -> None:
    parts = [piece("a"), text_end()]
    for place, part in enumerate(parts):
        part["choices"][0]["token_ids"] = [place]
    request = {"model": parts[0]["model"], "prompt": "hi", "stream": True, "stop": "ab"}
    sent = [*(event(part) for part in parts), DONE]
    raw = replay.stream(request | {"return_token_ids": True}, sent, "completions").body
    told = [x["choices"][0].get("token_ids") or [] for x in chunks_of(raw)]
    assert [id for ids in told for id in ids] == [0, 1]


def ids_in(events: list[Event]) -> list[tuple[int | None, list[int]]]:
    found = [x for x in events if isinstance(x, Extra) and x.key == "token_ids"]
    return [(x.choice, json.loads(bytes(x.value))) for x in found]


def switched(**more: Any) -> Any:
    return native.exchange(logprobs=False, switches=frozenset({"return_token_ids"}), **more)


def test_a_native_bodys_tokens_are_its_ids() -> None:
    told = native.last(text="é", tokens=[198, 172, 2])
    exchange = switched()
    assert ids_in(native.body(exchange, told)) == [(0, [198, 172, 2])]
    assert ids_in(native.body(native.exchange(), told)) == []
    assert "token_ids_missing" not in exchange.notes.counts


def test_native_bodies_of_several_prompts_have_their_own() -> None:
    told = [native.last(text="a", tokens=[n], index=n) for n in range(2)]
    assert ids_in(native.body(switched(n=2), told)) == [(0, [0]), (1, [1])]


@pytest.mark.parametrize(("made", "found"), [(0, [(0, [])]), (3, [])])
def test_an_empty_native_list_stands_for_none(made: int, found: list[Any]) -> None:
    exchange = switched()
    told = native.last(text="a", tokens=[], tokens_predicted=made)
    assert ids_in(native.body(exchange, told)) == found
    assert ("token_ids_missing" in exchange.notes.counts) == bool(made)


def test_a_native_streams_tokens_may_lack_some() -> None:
    exchange = switched()
    assert ids_in(native.read(exchange, native.piece("é", tokens=[172]), native.last())) == []
    assert exchange.notes.counts["token_ids_missing"] == 1
