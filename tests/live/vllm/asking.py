"""One seeded request to vLLM itself and through the proxy: what differs, and what must not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientSession

from tests.conformance import ChoiceFacts, Facts, Row, Violation, check_body, check_stream
from tests.corpus import checked_request
from tests.fold import chunks_of, comparable, fold
from tests.live.vllm.server import MODEL
from tests.models.tiny_hf import CONTROLS, Tokens

CHAT = "/v1/chat/completions"
TRUE = {data_id: data for data, data_id in Tokens().ids.items()} | {
    at: name.encode() for at, name in enumerate(CONTROLS)
}
"""Token id -> the bytes that it stands for."""


@dataclass(frozen=True)
class Answer:
    """What came, from either side."""

    status: int
    content_type: str
    repairs: str
    data: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.data)

    @property
    def chunks(self) -> list[Any]:
        """The stream's objects, [DONE] left out."""
        return chunks_of(self.data)


@dataclass
class Given:
    """What vLLM gave for one choice: text, rows, ids of the tokens, and how it ended."""

    text: str = ""
    rows: list[Row] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def bytes(self) -> list[bytes]:
        """The true bytes of each token."""
        return [TRUE[one] for one in self.ids]


@dataclass(frozen=True)
class Both:
    """Bodies and streams of one request, vLLM's own and the proxy's."""

    given: dict[int, Given]
    given_stream: dict[int, Given]
    raw: Any
    body: Any
    stream: Any
    raw_stream: Answer
    client_stream: Answer
    repairs: str


NO_CONTROLS = {str(at): -100.0 for at in range(len(CONTROLS))}
"""The logit_bias that keeps a random model from sampling control tokens."""


def question(content: str = "Hello world", **more: Any) -> dict[str, Any]:
    """Return a chat request, greedy and without control tokens unless `more` says otherwise."""
    asked: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
    return asked | {"temperature": 0, "max_tokens": 24, "logit_bias": NO_CONTROLS} | more


def chat_given(answer: Answer, *, streamed: bool) -> dict[int, Given]:
    """Read what vLLM gave, by choice."""
    found: dict[int, Given] = {}
    for part in answer.chunks if streamed else [answer.json]:
        for choice in part["choices"]:
            given = found.setdefault(choice["index"], Given())
            said = choice["delta" if streamed else "message"]
            given.text += said.get("content") or ""
            given.ids += choice.get("token_ids") or ()
            given.reason = choice.get("finish_reason") or given.reason
            given.stop_reason = choice.get("stop_reason") or given.stop_reason
            for entry in (choice.get("logprobs") or {}).get("content") or ():
                values = tuple(one["logprob"] for one in entry["top_logprobs"])
                given.rows.append(Row(entry["logprob"], values))
    return found


def facts(given: dict[int, Given], usage: dict[str, Any] | None, *, scored: bool) -> Facts:
    """Return what the conformance checker may know of an answer."""
    choices = {
        at: ChoiceFacts(rows=tuple(one.rows) if scored else None, drops=drops(one), text=one.text)
        for at, one in given.items()
    }
    counts = None if usage is None else (usage["prompt_tokens"], usage["completion_tokens"])
    return Facts(choices=choices, usage=counts)


def drops(given: Given) -> dict[str, int] | None:
    """Say how many rows may be dropped, as the tokens' true bytes tell.

    None where the text was cut inside a token, or where tokens that make no character are not in
    the text: then only the rows' places are checked.
    """
    data = given.bytes
    for count in range(len(data), -1, -1):
        if b"".join(data[:count]).decode("utf-8", "replace") == given.text:
            break
    else:
        return None
    left = data[count:]
    if any(part.decode("utf-8", "ignore") != part.decode("utf-8", "replace") for part in left):
        return None
    return {"logprobs_outside_content": len(left)} if left else {}


def conforms(violations: list[Violation], answer: Answer) -> None:
    """Fail with what is wrong, and with the answer."""
    if violations:
        listed = "\n".join(f"{one.rule} {one.where}: {one.detail}" for one in violations)
        raise AssertionError(f"{listed}\n{answer.data.decode('utf-8', 'replace')[:3000]}")


def normal(body: dict[str, Any], *, usage: bool) -> dict[str, Any]:
    """Return what body and stream must agree on; vLLM spaces the arguments of a body only."""
    out: dict[str, Any] = json.loads(json.dumps(comparable(body, usage=usage)))
    for choice in out["choices"]:
        for call in choice["message"].get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return out


def own_bytes(entries: list[dict[str, Any]], given: Given) -> None:
    """Assert that each entry has its own token's bytes, or the last of a character all of them.

    The last of all may be clipped. Control tokens are not in the text: they have none.
    """
    expected, got = b"", b""
    entries = [x for x in entries if x["bytes"] is not None or x["token"] not in CONTROLS]
    own = [data for data in given.bytes if data.decode(errors="replace") not in CONTROLS]
    for entry, data in zip(entries, own, strict=False):
        expected += data
        got += bytes(entry["bytes"] or ())
        if entry["bytes"] is not None and entry is not entries[-1]:
            assert got == expected, (entry, data)
    assert expected.startswith(got)


class Asking:
    """Sends one request both ways; `both` checks all that any answer must hold."""

    def __init__(self, session: ClientSession, direct: str, proxy: str) -> None:
        self.session = session
        self.direct = direct
        self.proxy = proxy

    async def post(
        self, base: str, payload: dict[str, Any], path: str = CHAT, **headers: str
    ) -> Answer:
        """POST to vLLM (`self.direct`) or to the proxy; header names with _ for -."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        async with self.session.post(base + path, json=payload, headers=named) as answer:
            return Answer(
                answer.status,
                answer.content_type,
                answer.headers.get("x-wellspoken-repairs", ""),
                await answer.read(),
            )

    async def both(self, payload: dict[str, Any], **headers: str) -> Both:
        """Ask for a body and a stream on both sides; check the proxy's against vLLM's numbers."""
        keep = frozenset(filter(None, headers.get("x_wellspoken_keep", "").split(",")))
        named = payload | {"return_token_ids": True}
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        raw = await self.post(self.direct, named)
        raw_stream = await self.post(self.direct, named | usage)
        assert (raw.status, raw_stream.status) == (200, 200), (raw.data, raw_stream.data)
        body = await self.post(self.proxy, payload, **headers)
        stream = await self.post(self.proxy, usage | payload | {"stream": True}, **headers)
        assert (body.status, stream.status) == (200, 200), (body.data, stream.data)
        assert stream.content_type == "text/event-stream"
        scored = bool(payload.get("logprobs"))
        given, given_stream = (
            chat_given(raw, streamed=False),
            chat_given(raw_stream, streamed=True),
        )
        asked = checked_request(payload, keep=keep)
        known = facts(given, raw.json["usage"], scored=scored)
        conforms(check_body(body.data, asked, known), body)
        told_usage = raw_stream.chunks[-1]["usage"]
        known = facts(given_stream, told_usage, scored=scored)
        asked = checked_request(usage | payload, keep=keep)
        conforms(check_stream(stream.data, asked, known), stream)
        folded = fold(stream.data)
        if [one.text for one in given.values()] == [one.text for one in given_stream.values()]:
            told = asked.include_usage
            same = normal(folded, usage=told) == normal(body.json, usage=told)
            assert same, (folded, body.data)
        for at, one in given.items():
            entries = (body.json["choices"][at]["logprobs"] or {}).get("content") or []
            if "\ufffd" not in one.text:
                own_bytes(entries, one)
        return Both(
            given, given_stream, raw.json, body.json, folded, raw_stream, stream, body.repairs
        )
