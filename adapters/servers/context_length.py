"""How many tokens of prompt and answer a server's models take, by each model's names.

It is read by the shape of what a server says, whoever the server is: an entry of its list of
models, or an object about the server itself. What counts is the length that is served. What a model
was trained for (llama.cpp's `meta.n_ctx_train`, Ollama's `model_info`; Xinference's
`context_length`, whatever it started the model with) or could be loaded with (LM Studio's
`max_context_length`) is longer, and an agent that believes it sends prompts that are refused, or
cut without a word. Nor is what is configured always served: cortex.cpp lists a `ctx_len` that it
shortens to 8192 when it loads the model, or does not pass on at all (its model_service.cc).

Sources, of an entry's keys:

- `max_model_len`: vLLM and FuriosaLLM (a capture of vLLM 0.32.0), SGLang since 2025-03 (its pull
  request #4809). The entry of a LoRA adapter has none, and names its base as `parent`.
- `meta.n_ctx`: llama.cpp (a capture of b11549; b7376 does not tell it there), llama-swap (its pull
  request #984). It is that of one slot, which is what a request gets; 0 where nothing is loaded.
- `loaded_context_length`: LM Studio's GET /api/v0/models, for models in memory
  (zed-industries/zed#25606); `loaded_instances[].config.context_length`: its GET /api/v1/models, of
  0.4 (lmstudio-bug-tracker issue #2139).
- `top_provider.context_length`, `context_length`: OpenRouter's model object, of which the former is
  what its first provider serves; the latter is also in Ollama's GET /api/ps, of loaded models
  (https://docs.ollama.com/api/ps).
- `parameters.max_seq_len`: TabbyAPI's GET /v1/model, the card of the loaded model, which its list
  leaves out (its endpoints/core/types/model.py).
- `context_window`: Groq's model object (https://console.groq.com/docs/models).
- `max_context_length`: Mistral's BaseModelCard; not where the entry tells whether it is loaded.

Sources, of an object about the server: `default_generation_settings.n_ctx`, that of one slot, in
llama.cpp's GET /props (captures; since 2024, also of KoboldCpp), which a router answers for the
model that its query names (tools/server/README.md); `max_total_tokens` in TGI's GET /info (its
docs/openapi.json); `context_length` in SGLang's GET /get_server_info, null unless it was set;
`value` in KoboldCpp's GET /api/extra/true_max_context_length (koboldcpp.py).

A model of Ollama's that is not loaded has the `num_ctx` of its Modelfile, which POST /api/show
tells; it will have no more than it was trained for. Without one it depends on OLLAMA_CONTEXT_LENGTH
and on the memory at that time, which nothing tells (its server/routes.go and llm/server.go).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import DecodeError, json

MOST: Final = 2**31 - 1
"""What servers count tokens in; -1 in 32 bits, which is no length, is more."""

_DIGITS: Final = 10  # of that number

_SERVED: Final = (
    ("max_model_len",),
    ("meta", "n_ctx"),
    ("loaded_context_length",),
    ("top_provider", "context_length"),
    ("context_length",),
    ("context_window",),
    ("parameters", "max_seq_len"),
)
"""Where an entry tells the length that is served; the first that does counts."""

_POSSIBLE: Final = (("max_context_length",),)
"""Where it is told of an entry that does not say whether its model is loaded."""

_XINFERENCE: Final = "xinference"
"""The owner of models whose `context_length` is their family's, whatever is served of it."""

_NUM_CTX: Final = re.compile(r"^num_ctx[ \t]+(\d{1,10})\s*$", re.ASCII | re.MULTILINE)
_LOADING: Final = frozenset({"state", "loaded_instances"})
"""Keys of an entry that says whether its model is loaded."""

_OF_SERVER: Final = (
    ("default_generation_settings", "n_ctx"),
    ("max_total_tokens",),
    ("context_length",),
    ("value",),
)
"""Where an object about a server tells the length of whatever it serves."""


def read_lengths(body: bytes) -> dict[str, int]:
    """Return the context lengths that a body tells by each name of each model.

    The name "" is for whichever model the server has. What tells none gives {}.
    """
    return lengths_of(_decode(body))


def read_shown_length(body: bytes) -> int | None:
    """Return the context length that Ollama's POST /api/show tells of a model, None if none."""
    shown = _decode(body)
    if not isinstance(shown, dict):
        return None
    parameters, info, details = (shown.get(x) for x in ("parameters", "model_info", "details"))
    if not (isinstance(parameters, str) and isinstance(info, dict) and isinstance(details, dict)):
        return None
    if details.get("format") != "gguf":  # others do not go by num_ctx
        return None
    trained = positive(info.get(f"{info.get('general.architecture')}.context_length"))
    given = _NUM_CTX.search(parameters)
    length = positive(given[1]) if given else None
    return None if length is None or trained is None else min(length, trained)


def _decode(body: bytes) -> Any:
    """Return decoded JSON, None for what is none."""
    try:
        return json.decode(body)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return None


def lengths_of(decoded: Any) -> dict[str, int]:
    """Return the same for JSON that was decoded."""
    entries = list(_entries(decoded))
    if not entries:
        length = _find(decoded, _OF_SERVER)
        return {} if length is None else {"": length}
    lengths: dict[str, int] = {}
    for entry in entries:
        length = _length_of_entry(entry)
        if length is not None:
            lengths.update(dict.fromkeys(_names(entry), length))
    for entry in entries:
        parent = entry.get("parent")
        if isinstance(parent, str) and parent in lengths:
            for name in _names(entry):
                lengths.setdefault(name, lengths[parent])
    return lengths


def positive(value: Any) -> int | None:
    """Return a number of tokens, also where it is written as text; None for what is none."""
    if isinstance(value, str):
        text = value.strip()
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None
    if type(value) is int and 0 < value <= MOST:  # True is an int, but of a type of its own
        return value
    return None


def _entries(decoded: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list: `data` (OpenAI), `models` (Ollama, LM Studio), or a bare one.

    A model's card by itself (TabbyAPI) is the only one.
    """
    lists = [decoded]
    if isinstance(decoded, dict):
        if isinstance(decoded.get("id"), str):
            yield decoded
        lists = [decoded.get("data"), decoded.get("models")]
    for items in lists:
        if isinstance(items, list):
            yield from (item for item in items if isinstance(item, dict))


def _length_of_entry(entry: dict[str, Any]) -> int | None:
    """Return the least length where several instances of a model are loaded: any may answer."""
    if entry.get("owned_by") == _XINFERENCE:
        return None
    instances = entry.get("loaded_instances")
    if isinstance(instances, list):
        loaded = (_find(instance, (("config", "context_length"),)) for instance in instances)
        least = min((length for length in loaded if length is not None), default=None)
        if least is not None:
            return least
    length = _find(entry, _SERVED)
    if length is None and not _LOADING & entry.keys():
        length = _find(entry, _POSSIBLE)
    return length


def _names(entry: dict[str, Any]) -> list[str]:
    """Return a model's names: OpenAI's, Ollama's, LM Studio's, and llama.cpp's `aliases`."""
    given = [entry.get(key) for key in ("id", "key", "model", "name")]
    for key in ("aliases", "loaded_instances"):
        more = entry.get(key)
        for each in more if isinstance(more, list) else ():
            given.append(each.get("id") if isinstance(each, dict) else each)
    return [name for name in given if isinstance(name, str) and name]


def _find(value: Any, paths: tuple[tuple[str, ...], ...]) -> int | None:
    """Return the first number of tokens that stands at one of `paths`."""
    for path in paths:
        found = value
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        length = positive(found)
        if length is not None:
            return length
    return None
