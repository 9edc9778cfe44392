"""What a backend is (data alone), and the request that it is sent.

`prepare` copies the client's keys in the client's order, each value byte for byte, and changes only
what a rule below names. It never changes the request: a retry prepares again.
"""

from __future__ import annotations

from re import Pattern
from typing import Any, Final, Literal

from msgspec import Raw, Struct, json

from wellspoken.adapters.openai import OPENAI_KEYS, OUR_KEYS, ChatRequest
from wellspoken.adapters.request_error import RequestError

HELPFUL: Final = frozenset({"user", "safety_identifier", "prompt_cache_key", "prediction"})
"""Keys that change nothing in the answer: left out where the backend does not know them."""

KEPT: Final = frozenset({"store", "metadata", "service_tier"})
"""Keys that the proxy answers for itself."""

SPECIAL: Final = frozenset({"modalities", "audio", "web_search_options"})
"""Keys that change what the answer is: refused where the backend does not know them."""

_encode = json.Encoder().encode
_NULL: Final = b"null"
OFF: Final = (b"null", b"false")
"""Values of a key by which nothing is asked for."""


Dialect = Literal["chat", "completions", "llamacpp"]
"""What a server's answers are read as: OpenAI's two shapes, or llama.cpp's own /completion."""


class Endpoint(Struct, frozen=True):
    """Where a server answers one kind of request, and what its answers are read as."""

    path: str
    dialect: Dialect


class Backend(Struct, frozen=True, kw_only=True):
    """One kind of server, as data; its module's docstring tells its deviations and their sources.

    `versions` are those its file was written for. `limit` is its name for the most tokens of an
    answer, `alternatives` that for top_logprobs, `asks_logprobs` whether it knows `logprobs: true`
    beside it. `knows` names those of `HELPFUL`, `KEPT` and `SPECIAL` that it is sent.

    `chat` and `completions` are its endpoints, None where it has none; `native` is the path of an
    endpoint of its own that `"oai_compat": false` may speak to. `many`: its chat endpoint gives `n`
    choices; `several`: its completions endpoint does, takes several prompts, and counts all their
    tokens. `together`: how many requests of one answer it gets at a time. `token_ids`: prompts may
    be token ids. `least_tokens`: the fewest that it can be asked for. `no_limit`: what it is told
    where the client sets no limit, if its own default would cut answers. `describes`: it wants a
    description and parameters of every function.

    `scores`: who gives a prompt's logprobs (`echo`, `prompt_logprobs`): the backend, the proxy with
    many small requests to it, or nobody. `unstreamed`: keys whose part of the answer its streams
    lack, so that it is asked for a body. `pairs_best`: an entry's value is that of its best
    alternative, whatever was sampled. `loses_entries`: with a stop string its logprobs lack
    entries, so stops are enforced here; `counting` then lets every chunk tell the counts so far.
    `detokenize`: where it tells the text of token ids.
    `ui`: the paths of its web page and of what that may read (GET alone).
    """

    name: str
    title: str
    deviations: str
    aliases: tuple[str, ...] = ()
    limit: str = "max_completion_tokens"
    alternatives: str = "top_logprobs"
    asks_logprobs: bool = True
    knows: frozenset[str] = frozenset()
    versions: str = ""
    chat: Endpoint | None = Endpoint("/v1/chat/completions", "chat")
    completions: Endpoint | None = Endpoint("/v1/completions", "completions")
    native: str | None = None
    many: bool = True
    several: bool = False
    together: int = 8
    token_ids: bool = True
    least_tokens: int = 0
    no_limit: int | None = None
    describes: bool = False
    scores: Literal["backend", "proxy", "nobody"] = "nobody"
    unstreamed: frozenset[str] = frozenset()
    pairs_best: bool = False
    loses_entries: bool = False
    counting: str = ""
    detokenize: str = ""
    ui: Pattern[str] | None = None
    models_path: str = "/v1/models"


def prepare(
    backend: Backend,
    request: ChatRequest,
    *,
    model: str | None,
    enforced: bool = False,
    body: bool = False,
) -> bytes:
    """Return the JSON to send to `backend`; raise `RequestError` for what it cannot do.

    `model` is the route's name for the model, None to keep the client's. `enforced`: the stop
    strings are not its affair, and its answer has to be a stream; `body`: it must not be one.
    """
    fields = request.fields
    sent: dict[str, Any] = {}
    if request.oai_compat is False:
        sent.update((key, value) for key, value in fields.items() if key not in OUR_KEYS)
    else:
        withheld = _withheld(backend, request)
        for key, value in fields.items():
            if key not in withheld and not (key in OPENAI_KEYS and bytes(value) == _NULL):
                sent[key] = value
        sent = _limited(backend, request, sent)
        _ask_logprobs(backend, request, sent)
        if request.functions and not request.tools:
            sent = _as_tools(request, sent)
        if backend.describes and "tools" in sent:
            sent["tools"] = _described(sent["tools"])
    if model is not None:
        sent["model"] = model
    if enforced:
        enforce(backend, sent)
    if body:
        unstream(sent)
    return _encode(sent)


def lacks_in_streams(backend: Backend, fields: dict[str, Raw]) -> bool:
    """Say whether a request asks for what the backend's streams lack."""
    return any(bytes(fields.get(key, Raw(_NULL))) not in OFF for key in backend.unstreamed)


def unstream(sent: dict[str, Any]) -> None:
    """Ask for a body, which the proxy then makes a stream of."""
    sent.pop("stream", None)
    sent.pop("stream_options", None)


def enforce(backend: Backend, sent: dict[str, Any]) -> None:
    """Ask for a stream that runs past the stop strings and tells its counts."""
    sent.pop("stop", None)
    sent["stream"] = True
    if backend.counting:
        sent[backend.counting] = True


def _withheld(backend: Backend, request: ChatRequest) -> frozenset[str]:
    """Return the keys that this backend is not sent."""
    unknown = SPECIAL - backend.knows
    for key in sorted(unknown):
        value = getattr(request, key)
        if value is not None and value != ["text"]:  # text is the one modality that all have
            raise RequestError(
                f"The '{key}' parameter is not supported by {backend.title}. Leave it out, or ask "
                "for a model whose server supports it.",
                param=key,
                code="unsupported_parameter",
            )
    return OUR_KEYS | unknown | ((HELPFUL | KEPT) - backend.knows)


def _limited(backend: Backend, request: ChatRequest, sent: dict[str, Any]) -> dict[str, Any]:
    """Say the limit once, by the backend's name; OpenAI's newer name wins over the older."""
    if backend.no_limit is not None and not sent.keys() & {"max_tokens", "max_completion_tokens"}:
        return sent | {backend.limit: backend.no_limit}
    if request.max_completion_tokens is None:
        if backend.limit in ("max_tokens", "max_completion_tokens"):
            return sent  # every server knows the older name
        old = "max_tokens"
    else:
        sent.pop("max_tokens", None)
        old = "max_completion_tokens"
    return {backend.limit if key == old else key: value for key, value in sent.items()}


def _ask_logprobs(backend: Backend, request: ChatRequest, sent: dict[str, Any]) -> None:
    """Ask for one alternative where the client wants none: some servers give no logprobs at 0.

    llama.cpp gives none at 0, others none when it is absent, vLLM <= 0.4.2 refuses; the answer is
    trimmed to what the client asked for.
    """
    if not request.logprobs:
        return
    count = request.top_logprobs or 1
    if backend.alternatives != "top_logprobs":
        sent.pop("top_logprobs", None)
        sent[backend.alternatives] = count
    elif not request.top_logprobs:
        sent["top_logprobs"] = count
    if not backend.asks_logprobs:
        del sent["logprobs"]


def _as_tools(request: ChatRequest, sent: dict[str, Any]) -> dict[str, Any]:
    """Rewrite OpenAI's deprecated `functions` and `function_call` to tools, past messages too.

    The answer's writers turn the calls back.
    """
    tools: dict[str, Any] = {}
    for key, value in sent.items():
        if key == "functions":
            functions = json.decode(value, type=list[Raw])
            tools["tools"] = [{"type": "function", "function": item} for item in functions]
        elif key == "function_call":
            choice = request.function_call
            named = {"type": "function", "function": value}
            tools["tool_choice"] = value if isinstance(choice, str) else named
        elif key == "messages":
            tools["messages"] = _messages_as_tools(json.decode(value, type=list[dict[str, Raw]]))
        elif key not in ("tools", "tool_choice"):
            tools[key] = value
    return tools


def _described(tools: Any) -> list[dict[str, Any]]:
    """Return the tools, each function with a description and parameters, if only empty ones."""
    found: list[dict[str, Any]] = json.decode(_encode(tools))
    for tool in found:
        if isinstance(tool.get("function"), dict):
            tool["function"].setdefault("description", "")
            tool["function"].setdefault("parameters", {"type": "object", "properties": {}})
    return found


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
