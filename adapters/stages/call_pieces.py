"""The calls of a choice as their pieces come: what is known of each, and what of it was written."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from msgspec import Struct, field

from wellspoken.adapters.events import Event, ToolDelta
from wellspoken.adapters.repairs.tools import Unfilled
from wellspoken.adapters.stages.call_arguments import CallArguments

OPENING = ("{", "[", '"')  # what a call's arguments begin with; the last, if encoded twice


def number_of(event: ToolDelta) -> int:
    """Return the index that a piece is written with."""
    return event.n or 0


class CallInPieces(Struct, eq=False):
    """One call: what the backend said of it, and what of that was written.

    `n` is our index, -1 until it is open; `index` and `given` are the backend's own index and id;
    `waiting` the arguments until then. `blank`: no arguments came yet; `unfilled`: an empty object
    did; `cumulative`: a piece said all so far. `bare`: a piece came without a name. `headed`: the
    first one had no arguments; `renamed`: another id came. `behind`: its name once more, with no
    arguments, when its own were whole. `head`: what opens it if its name is whole. `dropped`: the
    client does not get it, since it is one too many or says another again. `leaked`: it was found
    in the text. `twin`: a whole call of the same id and name before it, which it may say again.
    """

    index: int | None
    given: str | None = None
    name: str | None = None
    n: int = -1
    waiting: list[str] = []
    blank: bool = True
    unfilled: bool = False
    cumulative: bool = False
    bare: bool = False
    headed: bool | None = None
    renamed: bool = False
    behind: ToolDelta | None = None
    head: ToolDelta | None = None
    dropped: Literal["", "parallel", "again"] = ""
    leaked: bool = False
    twin: CallInPieces | None = None
    arguments: CallArguments = field(default_factory=CallArguments)

    def take(self, event: ToolDelta) -> str:
        """Return what a piece adds to the arguments, and remember it."""
        if self.headed is None:
            self.headed = not event.arguments.strip()
        self.renamed = self.renamed or bool(event.id and self.given and event.id != self.given)
        self.given = self.given or event.id
        self.name = self.name or event.name
        self.bare = self.bare or event.name is None
        text = event.arguments
        if isinstance(text, Unfilled):
            self.unfilled = self.blank
            return ""
        said = self.arguments.said_in(text)
        if said:
            self.cumulative = True
            text = text[said:]
        if text:
            self.blank = self.blank and not text.strip()
            self.unfilled = self.unfilled and self.blank
            text = self.arguments.add(text)
        return text

    def equals_twin(self) -> bool:
        """Say whether the arguments are those of the call that this one may say again."""
        return self.twin is not None and self.twin.arguments.equals("".join(self.arguments.pieces))


class ChoiceCalls(Struct, eq=False):
    """The calls of one choice, by the backend's index and id (the last of each).

    `size`: how many there are; `opened`: of them written. `last`: the last of `tool_calls`;
    `latest`: of all that are no other one again; `again`: whether one is; `cumulative`: whether a
    piece said all of a call so far. `newest`: the last one opened; `unsettled`: one not yet opened
    since its name may go on. `unready`: those written that have no arguments yet, or not all where
    others are behind them, by number; `held`: what those have. `ended`: a reason came; `cut`: that
    the limit was met. `order`: the calls as they began, but for those again. `empty`: a call's head
    with an empty object as its arguments, of which what comes next may take the place, and blank
    pieces behind it.
    """

    size: int = 0
    opened: int = 0
    by_index: dict[int, CallInPieces] = {}
    by_id: dict[str, CallInPieces] = {}
    ids: set[str] = set()
    names: set[str | None] = set()
    last: CallInPieces | None = None
    latest: CallInPieces | None = None
    again: bool = False
    cumulative: bool = False
    newest: CallInPieces | None = None
    unsettled: CallInPieces | None = None
    unready: dict[int, CallInPieces] = {}
    held: list[ToolDelta] = []
    ended: bool = False
    cut: bool = False
    order: list[CallInPieces] = []
    empty: list[ToolDelta] = []

    def lacks_name(self) -> bool:
        """Say whether there is a call of which no name came."""
        return self.opened + (self.unsettled is not None) < self.size

    def write(self, event: ToolDelta, out: list[Event]) -> None:
        """Write a piece, or hold it while a call before it lacks arguments."""
        if self.unready and number_of(event) > next(iter(self.unready)):
            self.held.append(event)
        else:
            out.append(event)

    def release(self, out: list[Event]) -> None:
        """Write what was held behind a call that has arguments now."""
        first = next(iter(self.unready), self.opened)
        self.held.sort(key=number_of)
        out += [piece for piece in self.held if number_of(piece) <= first]
        self.held = [piece for piece in self.held if number_of(piece) > first]


def says_again(event: ToolDelta, call: CallInPieces) -> bool:
    """Say whether a piece is all of a call once more, such as in a message that closes a stream.

    Without a name it is, where it can be no other call: behind whole arguments nothing else fits.
    Without an id it is, where the index counts calls, or another would begin otherwise, as this one
    did; with an id of its own only if that was another on each piece; behind a head only with its.
    """
    if call.behind is not None and (not event.id or event.id != call.given):
        return False
    opens = call.cumulative or call.headed
    if event.id:
        same = event.id == call.given or (call.renamed and opens)
    else:
        same = bool(call.given or event.n or opens or len(call.arguments.pieces) > 1)
    if not (same or event.name is None) or (event.name and event.name != call.name):
        return False
    if not event.arguments.lstrip().startswith(OPENING) or isinstance(event.arguments, Unfilled):
        return False
    return call.arguments.complete() and call.arguments.equals(event.arguments)


def is_behind(event: ToolDelta, head: ToolDelta) -> bool:
    """Say whether a piece is of the call of the head before it, by its id or else its index."""
    if event.apart or event.closing >= 0 or event.name not in (None, head.name):
        return False
    here = event.n is None or event.n == head.n
    if event.id:
        return event.id == head.id and (here or tells_call(event.id))
    return event.name is None and here


def tells_call(given: str | None) -> bool:
    """Say whether an id tells its call from all others: a bare number does not (TGI 2.x: "0")."""
    return bool(given) and not str(given).isdigit()


def join_names(name: str, piece: str, tools: Collection[str]) -> str:
    """Return what two pieces are of an offered tool's name, "" if they are two names."""
    if not {name, piece} <= {*tools}:
        for joined in (name + piece, piece):
            begins = joined != name and joined.startswith(name)
            if begins and any(tool.startswith(joined) for tool in tools):
                return joined
    return ""
