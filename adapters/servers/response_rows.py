"""The request table of responses, made of a server's table of chats.

What a response's parameter becomes in a chat has that chat's row; what the proxy does with the
others, or refuses, is the same in front of each server. A row for a value is named after it,
`tools.custom`, `text.format.json_schema`, `include.message.output_text.logprobs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import structs

from wellspoken.adapters.requests.responses.as_chat import SAME
from wellspoken.adapters.requests.responses.renamed import NAMES
from wellspoken.adapters.requests.responses.response_request import (
    INCLUDED,
    LOGPROBS,
    MOVED,
    REFUSED,
)
from wellspoken.adapters.requests.responses.response_tools import SEARCH, SERVER_SIDE
from wellspoken.adapters.servers.parameters import VENDOR, Support, Table, rows

_TAKEN: Final = SAME | {"tools", "tool_choice", "top_logprobs", *VENDOR}
"""Parameters whose chat row is theirs by the same name."""

_RENAMED: Final = {name: new for name, new in NAMES.items() if name != "max_tokens"}
"""Those whose row has another name here: a chat's older name of one has none."""

_VALUES: Final = {
    "input.image_url": "input.input_image",
    "input.file": "input.input_file",
    "input.reasoning_content": "input.reasoning",
    "include": f"include.{LOGPROBS}",
}
"""What values are called in a chat -> what they are here, behind the parameter's own new name."""

_OWN: Final = (
    rows("instructions", key="messages", note="a system message")
    | rows("previous_response_id input.item_reference", "answered", note="out of what is kept")
    | rows("store", "answered", note="kept by the proxy, unless it is false")
    | rows("metadata", "answered", note="said again in the response")
    | rows("service_tier", "answered", note='"default"')
    | rows("max_tool_calls", "accepted", note="said again; it is about tools that OpenAI runs")
    | rows("truncation", "accepted", note="nothing is cut: what is too long is a 400")
    | rows("stream_options", "accepted", note="no stream is padded")
    | rows("client_metadata", "accepted")
    | rows("reasoning.summary reasoning.generate_summary", "accepted", note="summaries are empty")
    | rows("reasoning.context reasoning.mode", "accepted")
    | {f"include.{name}": Support("accepted") for name in INCLUDED if name != LOGPROBS}
    | {name: Support("refused", note=f"Here it is '{new}'.") for name, new in MOVED.items()}
    | {name: Support("refused", note=note) for name, note in REFUSED.items()}
)
"""What becomes of these in front of every server."""

_AS_FUNCTIONS: Final = {
    "tools.custom": Support("emulated", note="a function of one text; no grammar"),
    "tools.namespace": Support("emulated", note="its functions, by both names"),
}
_NOT_RUN: Final = "Offer a function in its place, and run it."
_SEARCHES: Final = f"Left out where external_web_access says so, or else: {_NOT_RUN}"


def response_rows(chat: Table) -> dict[str, Support]:
    """Return what becomes of each parameter of a response, in front of the server of that table."""
    if not chat:
        return {}
    made = dict(_rename_rows(chat)) | _OWN
    for kind in SERVER_SIDE:
        note = _SEARCHES if kind.startswith(SEARCH) else _NOT_RUN
        made[f"tools.{kind}"] = Support("refused", note=note)
    refused = chat["tools"].how == "refused"
    return made | {name: chat["tools"] if refused else row for name, row in _AS_FUNCTIONS.items()}


def _rename_rows(chat: Table) -> Iterator[tuple[str, Support]]:
    """Yield the rows that a response needs as well, by its own names."""
    for name, row in chat.items():
        head, dot, value = name.partition(".")
        if head in _TAKEN:
            yield name, row
        elif head in _RENAMED:
            new = f"{_RENAMED[head]}{dot}{value}"
            key = row.key or (head if row.how == "native" and not value else "")
            yield _VALUES.get(new, new), structs.replace(row, key=key)
