"""An answer as a stream of events: what readers give, stages hold to the contract, writers write.

Order within one answer: `Start`, then per choice any of `Open`, `Reasoning`, `Text`, `Refusal`,
`ToolDelta` and one `Finish`; `Usage` and `Extra` anywhere; last `End` or `Fault`.

A logprob row is an `Entry`, which is already the shape the contract emits: a conforming row is
decoded, checked and encoded again without being rebuilt.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

UNKNOWN = -9999.0
"""OpenAI's value for a logprob that is not known (API reference, ChatCompletionTokenLogprob)."""

Lp = Annotated[float, Meta(le=0, ge=UNKNOWN)]
"""A logprob as the contract emits it; what is outside takes the tolerant path and is repaired."""

Reason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


class Alternative(Struct, gc=False, forbid_unknown_fields=True):
    """One alternative of a position; `bytes` is a JSON array of the token's bytes, or null.

    `id` is the token id that llama.cpp, mlx-lm and LocalAI add; it is dropped before writing.
    """

    token: str
    logprob: Lp
    bytes: Raw = Raw()
    id: int | UnsetType = UNSET


class Entry(Struct, gc=False, forbid_unknown_fields=True):
    """One backend token: its text, logprob, bytes as JSON, and alternatives in descending order.

    An entry without bytes or alternatives takes the tolerant path, which counts that.
    Between reader and tiling stage `bytes` is null where the backend did not tell them; then
    `token` is "" or holds U+FFFD (part of a character), or is `token_id:N` (text unknown).
    """

    token: str
    logprob: Lp
    bytes: Raw
    top_logprobs: list[Alternative]
    id: int | UnsetType = UNSET


class Logprobs(Struct, gc=False):
    """The entries that came with one piece of text.

    `plain`: every token is clean text and its bytes are that text's UTF-8. `sampled`: each entry's
    own token is known; False where only alternatives were sent (vLLM <= 0.4.2, streamed), among
    which the tiling stage chooses. `whole`: they are all of the choice's, brought by a body;
    `late`: by a message that closes a stream, behind their text. No entries: that logprobs were
    given is all that is said, which readers and the tiling stage do with a text of "" alone.
    """

    entries: list[Entry]
    plain: bool
    sampled: bool = True
    whole: bool = False
    late: bool = False


class Start(Struct, gc=False):
    """The answer's envelope, before everything else; again when a later chunk tells more of it."""

    id: str
    created: int
    model: str
    system_fingerprint: str | None = None


class Open(Struct, gc=False):
    """A choice begins; `raw` is the backend's conforming role chunk.

    The role waits for the first content or call, which decides its content (null before a call),
    unless a higher choice is to be written `now`. `null`: the raw one has null.
    """

    choice: int
    raw: bytes | None = None
    null: bool = False
    now: bool = False


class Text(Struct, gc=False):
    """A piece of content with the entries that came with it.

    `raw` is the backend's own chunk (JSON without framing) while it may go out as it is.
    """

    choice: int
    text: str
    lp: Logprobs | None = None
    raw: bytes | None = None


class Reasoning(Struct, gc=False):
    """A piece of the reasoning that some servers send beside the content."""

    choice: int
    text: str


class Refusal(Struct, gc=False):
    """A piece of the model's refusal with the entries that came with it."""

    choice: int
    text: str
    lp: Logprobs | None = None
    raw: bytes | None = None


FUNCTION_CALL = -1
"""The `n` of a `function_call` from a reader: OpenAI's older form, of which there is one."""


class ToolDelta(Struct, gc=False):
    """A piece of a tool call; `arguments` is JSON text or a piece of it.

    From a reader `n` is the backend's index, `FUNCTION_CALL` or None, and `id` and `name` may be
    absent or repeated.
    From the calls stage `n` ascends from 0, `id` and `name` are set on a call's first piece alone.
    `opens`: the raw chunk carries the choice's role too. `apart`: it is another call than the one
    before it in its list, since that is a body's, or both say one name alone. `closing`: its place
    in a message that closes a stream and says all calls again. `leaked`: it was found in the text,
    whole.
    """

    choice: int
    n: int | None
    id: str | None
    name: str | None
    arguments: str
    raw: bytes | None = None
    opens: bool = False
    apart: bool = False
    closing: int = -1
    leaked: bool = False


class Finish(Struct, gc=False):
    """A choice ends; `reason` is None where the backend gave none that is known.

    `alone`: it came on a delta that held nothing else, so nothing of its choice should follow.
    """

    choice: int
    reason: Reason | None
    alone: bool = True
    raw: bytes | None = None


UNNUMBERED = -1
"""The `slot` of counts that are one choice's, it is not said which one's."""


class Usage(Struct, gc=False):
    """Token counts, None where the backend did not tell.

    `prompt_details` and `completion_details` are OpenAI's two objects as JSON, empty if absent.
    `last`: it came in a chunk of its own, so the answer is complete. `running`: the counts so far,
    for the chunk that comes next. `timed`: they are from an object that is no usage, such as
    llama.cpp's timings. `slot`: the choice whose counts alone these are, None for the whole answer.
    """

    prompt: int | None
    completion: int | None
    prompt_details: Raw = Raw()
    completion_details: Raw = Raw()
    raw: bytes | None = None
    last: bool = False
    running: bool = False
    timed: bool = False
    slot: int | None = None


class Extra(Struct, gc=False):
    """A key outside the contract; `choice` is None for the answer's own keys.

    `where` names the object that held it: "answer", "choice" or "message".
    """

    where: Literal["answer", "choice", "message"]
    choice: int | None
    key: str
    value: Raw


class Fault(Struct, gc=False):
    """The answer failed; `status` is what a body answers, the rest is OpenAI's error object.

    `retry` False asks for `x-should-retry: false`: the same request would only fail again.
    """

    status: int
    message: str
    type: str = "server_error"
    param: str | None = None
    code: str | None = None
    retry: bool | None = None


class End(Struct, gc=False):
    """The backend's answer is over; `clean` if it said so ([DONE], a whole body)."""

    clean: bool


Event = Start | Open | Text | Reasoning | Refusal | ToolDelta | Finish | Usage | Extra | Fault | End
