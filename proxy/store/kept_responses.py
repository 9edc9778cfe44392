"""What is kept of a response (OpenAI's Responses API), and what a later one continues.

A kept response holds its own items and all those before it. So to continue it is one read, and one
that was deleted or pruned breaks nothing that came of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Protocol

from msgspec import Raw, Struct, json

from wellspoken.proxy.store.database import Unreadable
from wellspoken.proxy.store.rows import Row

LARGE: Final = 131_072
"""Bytes of JSON whose reading is more than the loop should do itself."""
_OWNERS: Final = "responses:"
"""Begins the owner of a response's row; those of completions are hex digits, or none."""


class KeptResponse(Struct, frozen=True, gc=False):
    """One finished response; none that failed.

    `created`: epoch seconds. `answer`: the response as the client got it, a stream's last, JSON.
    `input`: the items of its own request, `history`: all items before these, JSON lists.
    """

    id: str
    owner: str
    request_id: str
    created: int
    model: str
    answer: bytes
    input: bytes
    history: bytes = b"[]"

    @property
    def size(self) -> int:
        """How many bytes wait with it, or are read to continue it."""
        return len(self.answer) + len(self.input) + len(self.history)

    def make_row(self) -> Row:
        """Return the row of it, beside those of completions and apart from them by its owner."""
        return Row(
            self.id,
            _OWNERS + self.owner,
            self.created,
            self.model,
            self.request_id,
            _answer_of(self.answer).metadata or {},
            self.answer,
            b'{"input":%b}' % self.input,
            self.history,
        )


class ResponseStore(Protocol):
    """Responses that can be read and continued, each by its owner alone."""

    @property
    def why_not_kept(self) -> str:
        """Why nothing is kept here whatever comes, as a client may know it; "" if it is."""

    @property
    def refuses(self) -> str:
        """Why a request whose response is to be kept is to be refused now; "" if it is not."""

    async def add(self, kept: KeptResponse) -> str:
        """Keep a response; return "" or why it is not kept, as a client may know it.

        Never raises. A response whose id the owner has already is left as it is.
        """

    async def get(self, owner: str, id: str) -> KeptResponse | None:
        """Return a response. Raises StoreError."""

    async def delete(self, owner: str, id: str) -> bool:
        """Delete a response; return whether it was there. Raises StoreError."""


class _Answer(Struct):
    metadata: dict[str, str] | None = None
    previous_response_id: str | None = None
    output: list[Raw] = []


class _Parameters(Struct):
    input: Raw


class _Item(Struct):
    id: str | None = None


_answer_of = json.Decoder(_Answer).decode
_parameters_of = json.Decoder(_Parameters).decode
_items_of = json.Decoder(list[Raw]).decode
_item_of = json.Decoder(_Item).decode


def owner_of_rows(owner: str) -> str:
    """Return the owner of the rows of somebody's responses."""
    return _OWNERS + owner


def has_responses(owner: str) -> bool:
    """Say whether the rows of an owner are responses, and no completions."""
    return owner.startswith(_OWNERS)


def is_response(row: Row) -> bool:
    """Say whether a row is a response's, and no completion's."""
    return has_responses(row.owner)


def response_of(row: Row) -> KeptResponse:
    """Return the response of a row whose columns are JSON. On a `LARGE` one a thread's work.

    Raises Unreadable for the row of something else.
    """
    try:
        own = _parameters_of(row.parameters).input
    except ValueError as error:
        raise Unreadable(f"the parameters of {row.id} cannot be read: {error}") from error
    return KeptResponse(
        row.id,
        row.owner.removeprefix(_OWNERS),
        row.request_id,
        row.created,
        row.model,
        row.answer,
        bytes(own),
        row.messages,
    )


def own_items_of(kept: KeptResponse) -> list[Raw]:
    """Return the items that a response adds to its history: of its input, then of its output."""
    return [*_items_of(kept.input), *_answer_of(kept.answer).output]


def context_of(kept: KeptResponse) -> list[Raw]:
    """Return all items, JSON, that come before the input of a response which continues this one.

    Linear in its size: of a `LARGE` one a thread's work.
    """
    return [*_items_of(kept.history), *own_items_of(kept)]


def history_of(items: Sequence[Raw]) -> bytes:
    """Return items as `KeptResponse` holds them."""
    return b"[" + b",".join(items) + b"]"


def previous_of(kept: KeptResponse) -> str:
    """Return the id of the response that one continues, "" where it begins."""
    return _answer_of(kept.answer).previous_response_id or ""


def find_items(kept: KeptResponse, ids: Collection[str]) -> dict[str, Raw]:
    """Return those of a response's own items that have these ids. Of a `LARGE` one a thread's work.

    The id of an item tells the response whose own it is (`response_of_item`).
    """
    named = ((_item_of(item).id, item) for item in own_items_of(kept))
    return {id: item for id, item in named if id is not None and id in ids}
