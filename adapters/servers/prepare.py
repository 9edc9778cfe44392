"""The request that a backend is sent, for chat and for completions.

The client's keys go out in the client's order, each value byte for byte, but for what a rule below
changes. A request is never changed: a retry prepares again.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw, json

from wellspoken.adapters.requests.shapes import (
    COMPLETION_KEYS,
    NATIVE_KEYS,
    OFF,
    OPENAI_KEYS,
    OUR_KEYS,
    ChatRequest,
    CompletionRequest,
    Message,
    Prompt,
)
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.forms import leave_out_nulls, messages_in
from wellspoken.adapters.servers.forms_narrow import with_arguments
from wellspoken.adapters.servers.parameters import OURS, Table, find_rows, refuse
from wellspoken.adapters.servers.stream_usage import KEY, ask_usage

_encode = json.Encoder().encode
_NULL: Final = b"null"
_RAW_NULL: Final = Raw(_NULL)
_OF_TOOLS: Final = ("tools", "tool_choice", "parallel_tool_calls")

_CHATS: Final = (
    frozenset(key for key, row in OURS.items() if row.how != "refused") - COMPLETION_KEYS
)
"""Chat's keys that change nothing in an answer; some clients send them here as well."""


def prepare(
    backend: Backend,
    request: ChatRequest,
    *,
    model: str | None,
    enforced: bool = False,
    stream: bool | None = None,
    usage: bool = False,
    running: bool = False,
) -> bytes:
    """Return the JSON to send to `backend`; raise `RequestError` for what it cannot do.

    `model` is the route's name for the model, None to keep the client's. `enforced`: the stop
    strings are not its affair, and its answer has to be a stream. `stream`: whether it is asked for
    a stream, None to keep the client's wish. `usage`: whether that is to tell its counts, and
    `running`: each of its chunks those so far.
    """
    fields = request.fields
    if request.oai_compat is False:
        sent: dict[str, Any] = {k: v for k, v in fields.items() if k not in OUR_KEYS}
    else:
        sent = translate_chat(backend, request)
    if model is not None:
        sent["model"] = model
    if enforced:
        enforce(backend, sent)
    elif stream is not None:
        ask_stream(sent, stream, usage, running)
    return _encode(sent)


def translate_chat(backend: Backend, request: ChatRequest) -> dict[str, Any]:
    """Return what the client sent in the backend's form; raise `RequestError` as `prepare` does."""
    table = backend.chat_table
    needed = find_rows(request, table)
    refuse(needed, table, backend.title)
    sent: dict[str, Any] = {}
    for key, value in request.fields.items():
        if key in OUR_KEYS:
            continue
        if key not in OPENAI_KEYS:
            sent[key] = value
        elif value != _RAW_NULL and _is_sent(request, key, table, needed):
            sent[table[key].key or key] = value
    leave_out_nulls(sent)
    limited = request.max_tokens is not None or request.max_completion_tokens is not None
    if backend.no_limit is not None and not limited:
        sent[table["max_tokens"].key or "max_tokens"] = backend.no_limit
    _ask_chat_logprobs(request, table, sent)
    if request.functions and not request.tools:
        _as_tools(request, sent)
    of_functions = bool(request.functions) and not request.tools
    lacks_arguments = False
    for message in request.messages:
        if message.function_call is not None or message.tool_calls:
            of_functions = of_functions or message.function_call is not None
            lacks_arguments = lacks_arguments or _lacks_arguments(message)
    if of_functions:
        sent["messages"] = _messages_as_tools(messages_in(sent))
    if lacks_arguments:
        with_arguments(sent, lambda text: text or "{}")  # llama.cpp b11549 parses them: a 500
    for name in needed:
        form = table[name].form
        if form is not None:
            form(sent)
    if request.stop is not None:
        leave_empty_stops(request.stop, sent)
    return sent


def _is_sent(request: ChatRequest, key: str, table: Table, needed: dict[str, str]) -> bool:
    """Say whether a key goes out: OpenAI's newer name of the limit wins over the older.

    What asks for nothing stays here where its form could not be used, and so does what would be
    said of no tools: vLLM and Furiosa-LLM answer 400 for a tool_choice "auto" without them.
    """
    row = table[key]
    if key == "max_tokens" and request.max_completion_tokens is not None:
        return False
    if row.how != "native" or key in needed:
        return row.how == "native"
    idle = key in _OF_TOOLS and not (request.tools or request.functions)
    if key == "tool_choice" and request.tool_choice not in ("auto", "none"):
        idle = False  # a call is forced of tools that are not there: for the server to refuse
    return not (row.key or row.form or idle)


def leave_empty_stops(stop: str | list[str], sent: dict[str, Any]) -> None:
    """Take empty stop strings out: vLLM refuses them, others end at once (Ollama, SGLang, TGI)."""
    given = [stop] if isinstance(stop, str) else stop
    if "stop" in sent and "" in given:
        sent["stop"] = [text for text in given if text]
        if not sent["stop"]:
            del sent["stop"]


def _lacks_arguments(message: Message) -> bool:
    """Say whether a past call has no arguments, not even an empty object."""
    calls = [message.function_call, *(call.function for call in message.tool_calls or ())]
    return any(call is not None and call.arguments == "" for call in calls)


def lacks_in_streams(backend: Backend, fields: dict[str, Raw]) -> bool:
    """Say whether a request asks for what the backend's streams lack."""
    if not backend.apart and fields.keys().isdisjoint(backend.unstreamed):
        return False
    on = {key for key, value in fields.items() if bytes(value) not in OFF}
    return not on.isdisjoint(backend.unstreamed) or any(keys <= on for keys in backend.apart)


def ask_stream(sent: dict[str, Any], stream: bool, usage: bool, running: bool) -> None:
    """Ask for a stream, with its usage or without, or for a body, whatever the client wants."""
    if not stream:
        sent.pop("stream", None)
    elif bytes(sent.get("stream", b"")) != b"true":
        sent["stream"] = True
    if stream and usage:
        ask_usage(sent, running)
    else:
        sent.pop(KEY, None)


def enforce(backend: Backend, sent: dict[str, Any]) -> None:
    """Ask for a stream that runs past the stop strings and tells its counts."""
    sent.pop("stop", None)
    sent["stream"] = True
    if backend.counting:
        sent[backend.counting] = True


def _ask_chat_logprobs(request: ChatRequest, table: Table, sent: dict[str, Any]) -> None:
    """Ask for one alternative where the client wants none: some servers give no logprobs at 0.

    llama.cpp gives none at 0, others none when it is absent, vLLM <= 0.4.2 refuses; the answer is
    trimmed to what the client asked for.
    """
    key = table["top_logprobs"].key
    if request.logprobs and (key or not request.top_logprobs):
        sent[key or "top_logprobs"] = request.top_logprobs or 1


def _as_tools(request: ChatRequest, sent: dict[str, Any]) -> None:
    """Say OpenAI's deprecated `functions` and `function_call` as tools.

    The answer's writers turn the calls back.
    """
    functions = json.decode(request.fields["functions"], type=list[Raw])
    sent["tools"] = [{"type": "function", "function": item} for item in functions]
    choice = request.function_call
    if choice is not None:
        value = request.fields["function_call"]
        named = {"type": "function", "function": value}
        sent["tool_choice"] = value if isinstance(choice, str) else named


def _messages_as_tools(messages: list[dict[str, Raw]]) -> list[dict[str, Any]]:
    """Rewrite `function_call` of the assistant and the `function` role; ids pair them in order."""
    rewritten: list[dict[str, Any]] = []
    calls = 0
    for message in messages:
        new: dict[str, Any] = dict(message)
        call = new.pop("function_call", None)
        if call is not None and bytes(call) != _NULL:
            calls += 1
            new.setdefault("content", None)
            new["tool_calls"] = [{"id": f"call_{calls}", "type": "function", "function": call}]
        elif json.decode(message.get("role", _NULL)) == "function":
            new["role"] = "tool"
            new["tool_call_id"] = f"call_{calls}"
            new.pop("name", None)
            if bytes(message.get("content", _NULL)) == _NULL:
                new["content"] = ""
        rewritten.append(new)
    return rewritten


def prepare_completion(
    backend: Backend,
    request: CompletionRequest,
    *,
    model: str | None,
    prompt: Prompt | None = None,
    n: int | None = None,
    seed: int | None = None,
    enforced: bool = False,
    stream: bool | None = None,
    logprobs: int | None = None,
    usage: bool = False,
    running: bool = False,
    without: frozenset[str] = frozenset(),
) -> bytes:
    """Return the JSON for `backend`'s completions endpoint; raise `RequestError` as `prepare` does.

    `model` is the route's name for the model, None to keep the client's. The others override the
    client's value in one of several requests that the proxy makes of this one: `prompt` alone, `n`,
    `seed`, a number of `logprobs` that the client need not have asked for, and keys that go
    `without`. `enforced`: the stop strings are not the backend's affair, and its answer has to be a
    stream; `stream`: whether it is asked for one; `usage` and `running` as in `prepare`. With
    `"oai_compat": false` they have no effect.
    """
    fields = request.fields
    if request.oai_compat is False:
        sent: dict[str, Any] = {k: v for k, v in fields.items() if k not in OUR_KEYS}
    else:
        changed = {"prompt": prompt, "n": n if backend.several else None, "seed": seed}
        changed = {key: value for key, value in changed.items() if value is not None}
        sent = _translate_completion(backend, request, without, changed)
        # One null takes the limit away from llama.cpp, llama-cpp-python and vLLM alike.
        sent.setdefault("max_tokens", request.limit)
        _ask_logprobs(request, sent, logprobs)
        if enforced:
            enforce(backend, sent)
        elif stream is not None:
            ask_stream(sent, stream, usage, running)
    if model is not None:
        sent["model"] = model
    return _encode(sent)


def _translate_completion(
    backend: Backend, request: CompletionRequest, without: frozenset[str], changed: dict[str, Any]
) -> dict[str, Any]:
    """Return what the client sent, with these values `changed`, in the backend's form."""
    table = backend.completion_table
    needed = find_rows(request, table)
    refuse(needed, table, backend.title)
    withheld = OUR_KEYS | _CHATS | without | (NATIVE_KEYS if request.native else frozenset())
    sent: dict[str, Any] = {}
    for key, value in request.fields.items():
        if key not in withheld:
            if key not in COMPLETION_KEYS:
                sent[key] = value
            elif table[key].how == "native" and bytes(value) != _NULL:
                if key in needed or table[key].form is None:  # else it asks for nothing
                    sent[key] = value
    sent.update(changed)
    for name in needed:
        form = table[name].form
        if form is not None:
            form(sent)
    if request.stop is not None:
        leave_empty_stops(request.stop, sent)
    return sent


def _ask_logprobs(request: CompletionRequest, sent: dict[str, Any], wanted: int | None) -> None:
    """Ask for one alternative where none is wanted: at 0 some servers give no logprobs."""
    count = request.logprobs if wanted is None else wanted
    if count is not None and (wanted is not None or not count or "logprobs" not in sent):
        sent["logprobs"] = count or 1
