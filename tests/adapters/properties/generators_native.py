"""llama.cpp's own answers (POST /completion), written from the answers of `generators_text.py`.

Of a character that several tokens make, llama.cpp since 2024-12 gives one entry: its bytes, the
id, number and alternatives of the last of them. Before, each token had one, a lone byte as
`byte: \\xc3`, with probabilities and no number of its own beside the alternatives'.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.adapters.properties.generators import Draw, Token, groups, sometimes
from tests.adapters.properties.generators_text import Answer, TextCase, TextDeviation, unwritten
from tests.conformance import Row

END = 2  # the end-of-text token's id
Group = list[Token]


class Ids(dict[bytes, int]):
    """Token bytes -> the id of the token."""

    def __missing__(self, data: bytes) -> int:
        self[data] = 100 + len(self)
        return self[data]


def named(data: bytes, ids: Ids) -> dict[str, Any]:
    """Return a token's id, text and bytes."""
    return {"id": ids[data], "token": data.decode("utf-8", "replace"), "bytes": list(data)}


def new_entry(group: Group, ids: Ids) -> dict[str, Any]:
    """Return the entry of the tokens that are sent at once."""
    sent, last = b"".join(token.data for token in group), group[-1]
    top = [{**named(data, ids), "logprob": value} for data, value in last.top]
    own = {**named(sent, ids), "id": ids[last.data], "logprob": last.logprob}
    return own | {"top_logprobs": top}


def post_entry(group: Group, ids: Ids) -> dict[str, Any]:
    """Return the same with `post_sampling_probs`: probabilities under other names."""
    found = new_entry(group, ids)
    top = [{**row, "prob": math.exp(row.pop("logprob"))} for row in found.pop("top_logprobs")]
    return {**found, "prob": math.exp(found.pop("logprob")), "top_probs": top}


def old_text(data: bytes) -> str:
    """Return a token's text as llama.cpp up to b4273 has it."""
    if len(data) == 1 and data[0] >= 0x80:
        return f"byte: \\x{data[0]:02x}"
    return data.decode("utf-8", "replace")


def told(token: Token) -> Token:
    """Return a token with those alternatives alone whose text tells them: a name has one number."""
    top = tuple(pair for pair in token.top if "\ufffd" not in old_text(pair[0]))
    return Token(token.data, token.logprob, top)


def old_entry(token: Token) -> dict[str, Any]:
    """Return a token's entry up to b4273."""
    probs = [{"tok_str": old_text(data), "prob": math.exp(value)} for data, value in token.top]
    return {"content": old_text(token.data), "probs": probs}


def row_of(token: Token, post: bool = False) -> Row:
    """Return the numbers that an entry of llama.cpp since 2024-12 tells."""
    change = math.exp if post else float
    top = tuple(change(value) for _, value in token.top)
    return Row(change(token.logprob), top, names=tuple(data for data, _ in token.top))


def old_row(token: Token) -> Row:
    """Return the numbers that an older entry tells: its own is the one that reads as it does."""
    top = [(old_text(data), math.exp(value)) for data, value in token.top]
    same = {value for text, value in top if text == old_text(token.data)}
    own = same.pop() if len(same) == 1 else None
    return Row(own, tuple(value for _, value in top), names=tuple(text for text, _ in top))


def ending(answer: Answer, old: bool) -> dict[str, Any]:
    """Return what tells how a choice ended: the stop type, or the booleans of b4273."""
    limit = answer.reason == "length"
    if not old:
        return {"stop_type": "limit" if limit else "eos", "stopping_word": "", "truncated": False}
    return {
        "stopped_eos": not limit,
        "stopped_word": False,
        "stopped_limit": limit,
        "stopping_word": "",
        "truncated": False,
    }


def counts(case: TextCase) -> dict[str, Any]:
    """Return a last event's counts; each of the choices has its share of the usage."""
    prompt, completion = case.usage or (0, 0)
    return {"tokens_evaluated": prompt, "tokens_predicted": completion, "model": "x.gguf"}


def native(shape: str) -> Callable[[Draw, TextCase], None]:
    """Return what writes the answers in one shape: new, post, old, none (no logprobs)."""

    def write(draw: Draw, case: TextCase) -> None:
        old, ids = shape == "old", Ids()
        events: list[list[dict[str, Any]]] = []
        eos = sometimes(draw)
        for index, answer in enumerate(case.answers):
            answer.reason = "length" if answer.reason == "length" else "stop"
            if old:
                answer.tokens = [told(token) for token in answer.tokens]
            sent = groups(draw, answer.tokens) if old else whole(answer.tokens)
            scored = case.scored
            found = [_event(index, group, shape if scored else "none", ids) for group in sent]
            if old:
                answer.rows = [old_row(token) for token in answer.tokens]
            else:
                answer.rows = [row_of(group[-1], shape == "post") for group in sent]
            if eos and scored and not old and answer.reason == "stop":
                token = Token(b"", -0.25, ((b"", -0.25),))
                ids[b""] = END
                found.append(_event(index, [token], shape, ids))
                answer.rows = [*answer.rows, row_of(token, shape == "post")]
                answer.drops = {"logprobs_eos_entry": 1}
            found.append({"index": index, "content": "", "stop": True, **ending(answer, old)})
            found[-1] |= counts(case)
            events.append(found)
        n = len(case.answers)
        if case.usage is not None:
            per = n // len(case.prompts)
            case.usage = (case.usage[0] * (n // per), case.usage[1] * n)
        if case.streamed:
            case.parts = mixed(draw, events)
        else:
            bodies = [folded(found) for found in events]
            case.whole = bodies[0] if n == 1 else bodies
        case.done = False
        case.dialect = "llamacpp"

    return write


def whole(tokens: list[Token]) -> list[Group]:
    """Group tokens as llama.cpp sends them: as soon as there are whole characters.

    None of the last one's alternatives is such a character, since a map has one number for a name.
    """
    found: list[Group] = [[]]
    for token in tokens:
        found[-1].append(token)
        data = b"".join(one.data for one in found[-1])
        try:
            data.decode()
        except UnicodeDecodeError:
            continue
        if len(found[-1]) > 1:
            others = tuple(pair for pair in token.top if pair[0] != data)
            found[-1][-1] = Token(token.data, token.logprob, others)
        found.append([])
    return [group for group in found if group]


def _event(index: int, group: Group, shape: str, ids: Ids) -> dict[str, Any]:
    text = b"".join(token.data for token in group).decode()
    found: dict[str, Any] = {"index": index, "content": text, "stop": False, "id_slot": -1}
    if shape == "old":
        return found | {"completion_probabilities": [old_entry(token) for token in group]}
    if shape != "none":
        make = post_entry if shape == "post" else new_entry
        found["completion_probabilities"] = [make(group, ids)]
    return found | {"tokens": [ids[token.data] for token in group]}


def mixed(draw: Draw, events: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return several choices' events in any mixture, each choice's in their order."""
    waiting = [list(found) for found in events]
    order = []
    while any(waiting):
        queue = draw(st.sampled_from([queue for queue in waiting if queue]))
        order.append(queue.pop(0))
    return order


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the body of one choice's events."""
    body = dict(events[-1])
    body["content"] = "".join(event["content"] for event in events)
    entries = [x for event in events for x in event.get("completion_probabilities", ())]
    if entries:
        body["completion_probabilities"] = entries
    return body


@st.composite
def native_cases(draw: Draw, shape: str, chat: bool) -> TextCase:
    """Draw answers and write them in one of llama.cpp's shapes, for a client of either endpoint."""
    need = TextDeviation(
        native(shape),
        scored=False if shape == "none" else True,
        echo=False,
        single=chat,
        pieces=shape == "old",
        low=-6.0 if shape in ("old", "post") else None,
    )
    case: TextCase = draw(unwritten(need))
    case.chat = chat
    need.spoil(draw, case)
    return case


NATIVE: dict[str, Callable[[], st.SearchStrategy[TextCase]]] = {
    f"{shape}-{'chat' if chat else 'completions'}": lambda shape=shape, chat=chat: native_cases(  # type: ignore[misc]
        shape, chat
    )
    for shape in ("new", "post", "old", "none")
    for chat in (False, True)
}
