"""The items of a conversation as the messages of a chat.

An assistant's message holds what the model said in one turn: its reasoning, its text and its calls,
which are items of their own. A call's output stands right behind that message, wherever it was in
the list, since templates want it there; images and files of an output, which a chat's tool message
cannot hold, follow as the user's. What a call and its output have in common is `call_id`; where ids
come again in later turns, the first call has the first output.

What instructs the model before anybody speaks is one system message: a client that sends
`instructions` and messages of the developer made no chat, and templates take one (Mistral, Qwen3.5)
and know no developer.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec import Struct, json

from wellspoken.adapters.requests.errors import RequestError, short
from wellspoken.adapters.requests.responses.input_items import Item, kind_of
from wellspoken.adapters.requests.responses.response_tools import INPUT, name_at_backend

CALLS: Final = ("function_call", "custom_tool_call")
OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
_TITLES: Final = {
    "function_call": "function call",
    "custom_tool_call": "custom tool call",
    "function_call_output": "function call output",
    "custom_tool_call_output": "custom tool call output",
}


class Placed(Struct):
    """An item, and where in the request it stands; "" for one of a past turn."""

    item: Item
    path: str


class _Turn(Struct):
    """What the assistant said until somebody else speaks."""

    path: str
    content: Any = None
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    outputs: list[Placed] = []

    @property
    def is_spoken(self) -> bool:
        """Whether more than reasoning is in it, so that further reasoning begins another."""
        return self.content is not None or bool(self.calls)


class Conversation:
    """Collects items and gives `messages`, with where each came from in `paths`."""

    def __init__(self, items: Sequence[Placed], instructions: str | None = None) -> None:
        self.messages: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self._answers = _pair(items)
        self._turn: _Turn | None = None
        for place, placed in enumerate(items):
            self._take(place, placed)
        self._end_turn()
        self._lead(instructions)

    def _lead(self, instructions: str | None) -> None:
        """Put the instructions first, with those that the items begin with."""
        count = 0
        while count < len(self.messages) and self.messages[count]["role"] == "system":
            count += 1
        texts = [instructions] if instructions else []
        texts += [_text_of(message["content"]) for message in self.messages[:count]]
        if len(texts) < 2 and not instructions:
            return
        path = "instructions" if instructions else self.paths[0]
        self.messages[:count] = [{"role": "system", "content": "\n\n".join(texts)}]
        self.paths[:count] = [path]

    def _take(self, place: int, placed: Placed) -> None:
        item, kind = placed.item, kind_of(placed.item)
        if kind == "reasoning":
            texts = _thoughts(item)
            if self._turn is not None and self._turn.is_spoken:
                self._end_turn()
            if texts:
                self._open(placed.path).reasoning.extend(texts)
        elif kind in CALLS:
            turn = self._open(placed.path)
            turn.calls.append(_call(item))
            turn.outputs.append(self._answers[place])
        elif kind == "message" and item["role"] == "assistant":
            if self._turn is not None and self._turn.is_spoken:
                self._end_turn()
            turn = self._open(placed.path)
            turn.path = placed.path
            turn.content = _content(item["content"]) or ""
        else:
            self._end_turn()
            if kind == "message":
                role = "system" if item["role"] == "developer" else item["role"]
                self._add({"role": role, "content": _content(item["content"])}, placed.path)

    def _add(self, message: dict[str, Any], path: str) -> None:
        self.messages.append(message)
        self.paths.append(path)

    def _open(self, path: str) -> _Turn:
        if self._turn is None:
            self._turn = _Turn(path)
        return self._turn

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        content = turn.content
        if content is None and not turn.calls:
            content = ""  # of an answer that was cut while the model thought
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if turn.reasoning:
            message["reasoning_content"] = "\n\n".join(turn.reasoning)
        if turn.calls:
            message["tool_calls"] = turn.calls
        self._add(message, turn.path)
        shown: list[tuple[list[Any], str]] = []
        for output in turn.outputs:
            given, path = output.item["output"], output.path and f"{output.path}.output"
            text, others = (given, []) if isinstance(given, str) else _divide(given)
            call_id = output.item["call_id"]
            self._add({"role": "tool", "tool_call_id": call_id, "content": text}, path)
            if others:
                shown.append((others, path))
        for others, path in shown:
            self._add({"role": "user", "content": others}, path)


def _pair(items: Sequence[Placed]) -> dict[int, Placed]:
    """Return the output of each call, by the call's place; raise `RequestError` 400 for orphans."""
    outputs: defaultdict[tuple[str, str], deque[Placed]] = defaultdict(deque)
    for placed in items:
        kind = kind_of(placed.item)
        if kind in OUTPUTS:
            call = kind.removesuffix("_output")
            outputs[call, placed.item["call_id"]].append(placed)
    found = {}
    for place, placed in enumerate(items):
        kind = kind_of(placed.item)
        if kind in CALLS:
            waiting = outputs[kind, placed.item["call_id"]]
            if not waiting:
                raise _orphan(f"No tool output found for {_TITLES[kind]} ", placed.item)
            found[place] = waiting.popleft()
    for waiting in outputs.values():
        if waiting:
            title = _TITLES[kind_of(waiting[0].item)]
            raise _orphan(f"No tool call found for {title} with call_id ", waiting[0].item)
    return found


def _orphan(text: str, item: Item) -> RequestError:
    return RequestError(f"{text}{short(item['call_id'])}.", param="input")


def _thoughts(item: Item) -> list[str]:
    """Return the reasoning of an item, or else what was said of it."""
    for key in ("content", "summary"):
        texts = [part["text"] for part in item.get(key) or () if part.get("text")]
        if texts:
            return texts
    return []


def _call(item: Item) -> dict[str, Any]:
    arguments = item.get("arguments")
    if arguments is None:
        arguments = json.encode({INPUT: item["input"]}).decode()
    name = name_at_backend(item["name"], item.get("namespace"))
    function = {"name": name, "arguments": arguments}
    return {"id": item["call_id"], "type": "function", "function": function}


def _content(content: str | list[Item]) -> Any:
    """Return a message's content: one text as a string."""
    if isinstance(content, str):
        return content
    parts = list(map(_part, content))
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts


def _text_of(content: str | list[dict[str, Any]]) -> str:
    """Return the text of a system message, whose parts are texts alone."""
    if isinstance(content, str):
        return content
    return "\n\n".join(part["text"] for part in content)


def _part(part: Item) -> dict[str, Any]:
    kind = part["type"]
    if kind in ("input_text", "output_text"):
        return {"type": "text", "text": part["text"]}
    if kind == "refusal":
        return {"type": "refusal", "refusal": part["refusal"]}
    if kind == "input_image":
        image = {"url": part["image_url"]}
        detail = part.get("detail") or "auto"
        if detail != "auto":  # the default, with which it is kept; a chat has no "original"
            image["detail"] = "high" if detail == "original" else detail
        return {"type": "image_url", "image_url": image}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part["input_audio"]}
    file = {key: part[key] for key in ("filename", "file_data") if part.get(key) is not None}
    return {"type": "file", "file": file}


def _divide(parts: Iterable[Item]) -> tuple[Any, list[dict[str, Any]]]:
    """Return the texts of an output as a tool message's content, and its other parts."""
    given = list(map(_part, parts))
    texts = [part for part in given if part["type"] == "text"]
    others = [part for part in given if part["type"] != "text"]
    content: Any = texts if len(texts) > 1 else texts[0]["text"] if texts else ""
    return content, others
