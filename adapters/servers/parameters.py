"""The request table: what becomes of each parameter of a request in front of a server.

Each server's file has one row for every parameter of OpenAI's requests, and for those of their
values that servers treat apart (`tool_choice.function`). `prepare` goes by the rows; so do GET
/v1/capabilities and the public table in README.md, hence nothing is said twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, cast

from msgspec import Struct

from wellspoken.adapters.requests.errors import short, unsupported
from wellspoken.adapters.requests.shapes import OFF, ChatRequest, CompletionRequest
from wellspoken.adapters.servers import forms, forms_reasoning

How = Literal["native", "emulated", "answered", "accepted", "refused"]
"""native: the server does it, in its own form. emulated: the proxy does it. answered: the proxy
answers for itself. accepted: changes nothing in the answer, so not sent. refused: a 400."""

Form = Callable[[dict[str, Any]], None]
"""Changes in place what is sent: values are `Raw` as the client sent them, or decoded."""


class Support(Struct, frozen=True):
    """One row: `key` is the server's name where it has another, `form` what its values become.

    `note` is for people: how the proxy does it, from which version the server does, or what to do
    where it is refused. `since`: the version ("0.8.3") from which the row holds, and `older` the
    row before, None where it was refused (`versions.py`).
    """

    how: How = "native"
    key: str = ""
    note: str = ""
    form: Form | None = None
    since: str = ""
    older: Support | None = None


Table = Mapping[str, Support]


def rows(
    names: str, how: How = "native", *, key: str = "", note: str = "", form: Form | None = None
) -> dict[str, Support]:
    """Return one and the same row for each of the names, which spaces part."""
    support = Support(how, key, note, form)
    return {name: support for name in names.split()}


PARTS: Final = ("image_url", "input_audio", "file")
"""The kinds of a message's parts that are no text."""

CHAT_VARIANTS: Final = (
    "messages.developer",
    *(f"messages.{kind}" for kind in PARTS),
    "messages.reasoning_content",
    "response_format.json_object",
    "response_format.json_schema",
    "tool_choice.none",
    "tool_choice.required",
    "tool_choice.function",
    "tool_choice.allowed_tools",
    "tools.custom",
)
"""Values of chat parameters that have a row of their own."""

VENDOR: Final = ("return_token_ids",)
"""Vendors' parameters that have a row: vLLM's, whose effect the proxy gives at other servers."""

OURS: Final = (
    rows("store metadata", "answered", note="stored by the proxy, where it has a store")
    | rows("service_tier", "answered", note='"default" where one was asked for')
    | rows("user safety_identifier prediction", "accepted")
    | rows("prompt_cache_key prompt_cache_options prompt_cache_retention", "accepted")
    | rows("moderation", "refused", note="Leave it out, or ask a moderation service apart.")
)
"""What no server need know, or can do: the usual rows of a chat table."""

AS_TOOLS: Final = rows("functions function_call", "emulated", note="as tools, and back")
"""OpenAI's deprecated names, which no server need know either."""

# What the proxy does in front of most servers that do not, in the same words for each.
ONE_EACH: Final = Support("emulated", note="one request for each choice")
BEST_OF: Final = Support("emulated", note="one request for each; the likeliest are kept")
COUNTED: Final = Support("emulated", note="counted by the proxy")
ECHOED: Final = Support("emulated", note="the prompt's text, by the proxy")
FIRST_CALL: Final = Support("emulated", note="the calls after the first are dropped")
WITHOUT_TOOLS: Final = Support("emulated", note="without the tools", form=forms.no_tools)
ONLY_ALLOWED: Final = Support("emulated", note="only these are offered", form=forms.offer_allowed)
AS_SYSTEM: Final = Support("emulated", note="as system", form=forms.developer_as_system)
AS_REASONING_CONTENT: Final = Support(form=forms_reasoning.as_reasoning_content)
AS_REASONING: Final = Support(key="reasoning", form=forms_reasoning.as_reasoning)
AS_BOTH: Final = Support(note="also as `reasoning`", form=forms_reasoning.as_both)
WITHOUT_REASONING: Final = Support("accepted", form=forms_reasoning.without_reasoning)
USAGE_ALONE: Final = Support(form=forms.usage_alone)
IGNORED: Final = Support("accepted")
NOT_TOLD: Final = Support("refused", note="Ask a model whose server tells them: vLLM, llama.cpp.")
TOLD: Final = Support(note="a choice's `token_ids`, and `prompt_token_ids`")

CHAT: Final = (
    OURS
    | AS_TOOLS
    | {
        "n": ONE_EACH,
        "max_completion_tokens": Support(key="max_tokens"),
        "stream_options": USAGE_ALONE,
        "tool_choice.none": WITHOUT_TOOLS,
        "tool_choice.allowed_tools": ONLY_ALLOWED,
        "parallel_tool_calls": FIRST_CALL,
        "messages.developer": AS_SYSTEM,
        "messages.reasoning_content": AS_REASONING_CONTENT,
        "return_token_ids": NOT_TOLD,
    }
)
"""What becomes of these in front of most servers; a server's table says the rest and its own."""

PastReasoning = Literal["auto", "pass", "drop", "reasoning_content", "reasoning"]
PAST_REASONING: Final[Mapping[PastReasoning, Support]] = {
    "pass": Support(),
    "drop": WITHOUT_REASONING,
    "reasoning_content": AS_REASONING_CONTENT,
    "reasoning": AS_REASONING,
}
"""What a route may say of past reasoning in the place of the table's row."""

COMPLETIONS: Final = {
    "n": ONE_EACH,
    "best_of": BEST_OF,
    "stream_options": USAGE_ALONE,
    "user": IGNORED,
    "return_token_ids": NOT_TOLD,
}
"""The same of completions."""

TEXTS_ALONE: Final = (
    {"n": ONE_EACH, "echo": ECHOED, "stream_options": USAGE_ALONE, "user": IGNORED}
    | {"return_token_ids": NOT_TOLD}
    | rows("prompt.ids", "refused", note="Send its text.")
    | rows("logprobs", "refused", note="Ask for them at POST /v1/chat/completions.")
    | rows("best_of", "refused", note="It goes by logprobs, which are not told. Send n alone.")
)
"""The same of completions where token ids are not read and logprobs are not told."""

ASKS_NOTHING: Final[Mapping[str, tuple[Any, ...]]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("auto",),
    "functions": ([],),
    "logit_bias": ({}, []),
    "metadata": ({},),
    "modalities": (["text"], []),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "stop": ("", []),
    "store": (False,),
    "stream": (False,),
    "suffix": ("",),
    "tool_choice": ("auto",),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
}
"""Values by which nothing is asked for: never refused, and sent only where the row is native."""


_OFFERS: Final = frozenset(
    {"function_call", "functions", "tools"}
)  # not to be called at tool_choice "none"


def find_rows(request: ChatRequest | CompletionRequest, table: Table) -> dict[str, str]:
    """Return the rows that a request needs, each with the `param` that an error would name."""
    found: dict[str, str] = {}
    chat = "messages" in table
    for name in table:
        if chat and name not in request.fields:  # as most are
            continue
        value = getattr(request, name, None)
        if name == "logprobs" and value is False:  # unlike 0, which it equals
            continue
        if name == "seed" and request.temperature == 0 and table[name].how == "refused":
            continue  # the likeliest token needs no chance; lm-evaluation-harness sends it always
        if value is not None and value not in ASKS_NOTHING.get(name, ()):
            found[name] = name
    for name in VENDOR:
        if bytes(request.fields.get(name, b"null")) not in OFF and name in table:
            found[name] = name
    prompt = getattr(request, "prompt", "")
    if chat:
        _chat_variants(cast(ChatRequest, request), found)
    elif not _is_text(prompt):
        found["prompt.ids"] = "prompt"
    return found


def refuse(used: Mapping[str, str], table: Table, title: str) -> None:
    """Raise `RequestError` 400 for the first row in use that is refused."""
    for name, param in used.items():
        row = table[name]
        if row.how == "refused" and not (name in _OFFERS and "tool_choice.none" in used):
            raise unsupported(
                param,
                f"{_subject(name)} not supported by {title}. "
                f"{row.note or 'Leave it out, or ask for a model whose server supports it.'}",
            )


def _subject(name: str) -> str:
    key, _, value = name.partition(".")
    if key == "messages":
        what = "A message of role" if value == "developer" else "Content of type"
        return f"{what} '{value}' is"
    if name == "prompt.ids":
        return "A prompt of token ids is"
    if value:
        return f"The value '{short(value)}' of '{key}' is"
    return f"The '{key}' parameter is"


def _is_text(prompt: Any) -> bool:
    items = prompt if isinstance(prompt, list) else [prompt]
    return all(isinstance(item, str) for item in items)


def _chat_variants(request: ChatRequest, found: dict[str, str]) -> None:
    """Add the rows of single values; functions need what tools need."""
    choice: Any = request.tool_choice
    param = "tool_choice"
    if not (request.tools or request.functions):
        found.pop("parallel_tool_calls", None)  # of no tools nothing is asked for
    if "functions" in found and "tools" not in found:
        found["tools"] = "functions"
        choice, param = request.function_call, "function_call"
    if isinstance(choice, str):
        if choice in ("none", "required"):
            found.pop("tool_choice", None)
            found[f"tool_choice.{choice}"] = param
    elif choice is not None:
        found.pop("tool_choice", None)
        allowed = getattr(choice, "type", None) == "allowed_tools"
        found["tool_choice.allowed_tools" if allowed else "tool_choice.function"] = param
        given = getattr(choice, "allowed_tools", None)
        if allowed and isinstance(given, dict) and given.get("mode") == "required":
            found["tool_choice.required"] = param
    for place, tool in enumerate(request.tools or ()):
        if tool.type == "custom":
            found["tools.custom"] = f"tools[{place}]"
    wanted = request.response_format
    if wanted is not None and wanted.type is not None:
        if wanted.type == "text":
            del found["response_format"]
        elif f"response_format.{wanted.type}" in CHAT_VARIANTS:
            found[f"response_format.{wanted.type}"] = "response_format"
    _message_variants(request, found)


def _message_variants(request: ChatRequest, found: dict[str, str]) -> None:
    for place, message in enumerate(request.messages):
        if message.role == "developer":
            found["messages.developer"] = f"messages[{place}].role"
        if message.reasoning_content is not None or message.reasoning is not None:
            found.setdefault("messages.reasoning_content", f"messages[{place}].reasoning_content")
        if message.audio is not None:
            found["audio"] = f"messages[{place}].audio"
        for at, call in enumerate(message.tool_calls or ()):
            if call.type == "custom":
                found.setdefault("tools.custom", f"messages[{place}].tool_calls[{at}]")
        if isinstance(message.content, list):
            for at, part in enumerate(message.content):
                if part.type in PARTS:
                    found.setdefault(f"messages.{part.type}", f"messages[{place}].content[{at}]")
