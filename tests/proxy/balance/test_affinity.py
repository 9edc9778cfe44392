"""Which requests are to have the same server: what stays of a conversation, and headers."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.json import Decoder
from multidict import CIMultiDict, CIMultiDictProxy

from wellspoken.proxy.balance.affinity import BEGINNING, find_key

_decode = Decoder(dict[str, Raw]).decode
Json = dict[str, Any]


def key_of(body: Json | bytes, affinity: str = "prefix", /, **headers: str) -> bytes | None:
    """Return the key of a request with this body; `_` in a header's name is `-`."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    return find_key(affinity, CIMultiDictProxy(given), _decode(data))


def hash_of(text: bytes) -> bytes:
    return blake2b(text, digest_size=16).digest()


def said(role: str, content: Any) -> Json:
    return {"role": role, "content": content}


TEXTS = st.text(max_size=20)
CONVERSATIONS = st.tuples(
    st.lists(st.builds(said, st.sampled_from(["system", "developer"]), TEXTS), max_size=2),
    TEXTS,
)


@given(
    conversation=CONVERSATIONS,
    later=st.lists(st.builds(said, st.sampled_from(["assistant", "user", "tool"]), TEXTS)),
    name=st.sampled_from(["messages", "input"]),
    indent=st.sampled_from([None, 1]),
)
def test_the_next_turns_of_a_conversation_keep_its_key(
    conversation: tuple[list[Json], str], later: list[Json], name: str, indent: int | None
) -> None:
    begin = [*conversation[0], said("user", conversation[1])]
    first: Json = {"model": "m", name: begin}
    next_one: Json = {"temperature": 1, "stream": True, name: [*begin, *later], "model": "m"}
    keys = {key_of(json.dumps(body, indent=indent).encode()) for body in (first, next_one)}
    assert len(keys) == 1 and None not in keys


@given(one=CONVERSATIONS, other=CONVERSATIONS)
def test_other_conversations_have_other_keys(
    one: tuple[list[Json], str], other: tuple[list[Json], str]
) -> None:
    bodies: list[Json] = [
        {"model": "m", "messages": [*begin, said("user", text)]} for begin, text in (one, other)
    ]
    assert (key_of(bodies[0]) == key_of(bodies[1])) == (one == other)


def test_long_conversations_differ_however_late() -> None:
    bodies = [{"messages": [said("system", "a" * 9000), said("user", text)]} for text in "ab"]
    assert key_of(bodies[0]) != key_of(bodies[1])
    parts = [{"messages": [said("user", [{"type": "text", "text": text}])]} for text in "ab"]
    assert key_of(parts[0]) != key_of(parts[1])


def test_the_model_is_a_part_of_the_key() -> None:
    messages = [said("user", "Hi")]
    keys = {key_of({"model": model, "messages": messages}) for model in ("a", "b")}
    assert len({*keys, key_of({"messages": messages})}) == 3


@pytest.mark.parametrize("name", ["prompt", "input"])
def test_a_text_is_known_by_its_beginning(name: str) -> None:
    begin = "a" * BEGINNING
    assert key_of({name: begin + "b"}) == key_of({name: begin + "c"}) != key_of({name: "c" + begin})
    assert key_of({name: "a"}) != key_of({name: "b"})
    assert key_of({name: [begin, "b"]}) == key_of({name: [begin, "c"]})
    assert key_of({name: [1, 2, 3]}) != key_of({name: [1, 2, 4]})


@pytest.mark.parametrize("name", ["system", "instructions"])
def test_a_system_message_beside_the_messages_counts(name: str) -> None:
    """Of Anthropic's endpoint and of responses."""
    bodies = [{name: text, "messages": [said("user", "Hi")]} for text in ("a", "b")]
    assert key_of(bodies[0]) != key_of(bodies[1])
    blocks = [{**body, name: [{"type": "text", "text": body[name]}]} for body in bodies]
    assert key_of(blocks[0]) != key_of(blocks[1])


def test_a_responses_items_need_no_role() -> None:
    call = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"}
    first: Json = {"input": [call, said("user", "Hi")]}
    assert key_of(first) == key_of({"input": [*first["input"], call]})


@pytest.mark.parametrize("body", [{}, {"model": "m"}, {"model": "m", "tokens": [1]}])
def test_a_request_without_a_prompt_has_none(body: Json) -> None:
    assert key_of(body) is None


def test_a_conversation_without_a_user_is_known_by_its_beginning() -> None:
    begin = said("assistant", "a" * BEGINNING)
    assert key_of({"messages": [begin]}) == key_of({"messages": [begin, begin]})


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("role"), inner),
    max_leaves=20,
)


@given(
    body=st.dictionaries(
        st.sampled_from(["model", "system", "messages", "prompt", "input"]) | st.text(), JSON
    )
)
def test_any_json_has_a_key_or_none(body: Json) -> None:
    key = key_of(body)
    assert (key is None) == (not body.keys() & {"messages", "prompt", "input"})
    assert key == key_of(body)


@pytest.mark.parametrize(
    "prompt",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'[{"role": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
        b'[{"role": "\xff"}]',
        b'[{"role": "\\ud800"}]',
        b'[{"role": 1}, {"role": "user"}]',
        b"[null]",
    ],
)
def test_what_no_server_takes_has_its_first_bytes(prompt: bytes) -> None:
    headers = CIMultiDictProxy(CIMultiDict[str]())
    assert find_key("prefix", headers, {"messages": Raw(prompt)}) == hash_of(prompt[:BEGINNING])


def test_a_headers_value_is_the_key() -> None:
    body = {"model": "m", "messages": [said("user", "Hi")]}
    assert key_of(body, "header:x-session-id", X_Session_Id="a") == hash_of(b"a")
    assert key_of({}, "header:X-Session-ID", x_session_id="a b \udce9") == hash_of(b"a b \xe9")
    assert key_of(body, "header:x-session-id") is None
    assert key_of(body, "header:x-session-id", x_session_id="") is None
    assert key_of(body, "header:x-session-id", x_other="a") is None


def test_without_an_affinity_there_is_no_key() -> None:
    assert key_of({"messages": [said("user", "Hi")]}, "none", x_session_id="a") is None
