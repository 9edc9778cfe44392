"""What is stored: a capture of one answer, the row that it becomes, and what rows are asked for."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from msgspec import UNSET, Raw, Struct, UnsetType, json

BESIDE = frozenset({"messages", "metadata", "store", "stream", "stream_options"})
"""Keys of a request that are no parameter of a stored completion: they are kept beside, or not."""
COLUMNS = ("answer", "parameters", "messages")
"""What a row has of JSON, and its size counts."""


class Storable(Protocol):
    """What becomes a row on its way through the queue."""

    @property
    def request_id(self) -> str:
        """The request that it comes of, for the log."""

    @property
    def size(self) -> int:
        """How many bytes wait with it."""

    def make_row(self) -> Row:
        """Return its row. Takes its time on a large one: a thread's work."""


class Capture(Struct, frozen=True, gc=False):
    """One answer as it leaves the proxy, with the request that it answers.

    `answer`: the JSON of the chat completion, a stream's folded. `request`: the JSON that the
    client sent. `owner`: "" where nobody needs a key, else what `auth.owner_of` makes of the key.
    """

    owner: str
    request_id: str
    answer: bytes
    request: bytes

    @property
    def size(self) -> int:
        """How many bytes wait with it."""
        return len(self.answer) + len(self.request)

    def make_row(self) -> Row:
        """See `row_of`."""
        return row_of(self)


class Row(Struct, gc=False):
    """One stored completion as databases hold it.

    `created`: epoch seconds, the answer's. `answer`, `parameters` (a JSON object: the request
    without what is in BESIDE) and `messages` (a JSON list) are JSON or what `packing` made of it.
    `seq` is the database's own order of arrival, 0 before it has one.
    """

    id: str
    owner: str
    created: int
    model: str
    request_id: str
    metadata: dict[str, str]
    answer: bytes
    parameters: bytes
    messages: bytes
    seq: int = 0

    @property
    def size(self) -> int:
        """How many bytes its columns take."""
        return len(self.answer) + len(self.parameters) + len(self.messages)

    @property
    def position(self) -> Position:
        """Where it stands in the order of pages."""
        return Position(self.created, self.seq)


class Position(NamedTuple):
    """Where a row stands in the order of pages."""

    created: int
    seq: int


class Query(Struct, frozen=True, kw_only=True):
    """What rows are wanted: at most `limit` of them behind `after`, in the order of positions.

    `owner` None: everybody's. `metadata`: pairs that a row must all have. `since` and `until`:
    epoch seconds, the first included, the second not. `messages` False leaves that column b"",
    since a page of completions does not show it.
    """

    owner: str | None
    limit: int
    model: str | None = None
    metadata: dict[str, str] = {}
    after: Position | None = None
    descending: bool = False
    since: int | None = None
    until: int | None = None
    messages: bool = True


class _Answer(Struct):
    id: str
    created: int
    model: str


class _Request(Struct):
    messages: Raw = Raw(b"[]")
    metadata: dict[str, str] | UnsetType | None = UNSET


_answer_of = json.Decoder(_Answer).decode
_request_of = json.Decoder(_Request).decode
_fields_of = json.Decoder(dict[str, Raw]).decode
_encode = json.Encoder().encode


def row_of(capture: Capture) -> Row:
    """Return the row of a capture. Takes its time on a large one: a thread's work."""
    answer, request = _answer_of(capture.answer), _request_of(capture.request)
    fields = _fields_of(capture.request)
    parameters = {key: value for key, value in fields.items() if key not in BESIDE}
    return Row(
        answer.id,
        capture.owner,
        answer.created,
        answer.model,
        capture.request_id,
        request.metadata or {},
        capture.answer,
        _encode(parameters),
        bytes(request.messages),
    )
