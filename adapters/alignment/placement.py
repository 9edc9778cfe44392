"""What an alignment is made of: what a row may stand for, which bytes it owns, at what cost.

A *row* is a logprob entry as the alignment sees it: the things that its token may stand for, its
*options*. A *piece* is a row that was found to be of the content, with the bytes it owns there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

_SPACE = re.compile(  # what str.strip takes
    rb"(?:[\t-\r\x1c-\x20\x80-\xbf]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|"
    rb"\xe2\x81\x9f|\xe3\x80\x80)*"
)
PART = (b"", b"")  # the texts of a part of a character
ANY = 1_000_000  # `most` of a row that may stand for any text
STEPS = 400_000
BACK = 3  # rows before the place where a stretch breaks off, at which it may be left as well
EXITS = 32  # places at which a stretch may be left after a row, the furthest
REPLACEMENT = "\ufffd".encode()

AFTER = 1  # a control token closes what stands before the content
SPACE = 2  # only white space was cut at the front, or stands between that and the content
FRONT = 4  # other rows before the content are outside
LEFT = 1  # those that came with the content are behind it, though its own text is not known
FAR = 10  # and more stands before them than a server holds back
TAIL = 18  # rows with text stand behind the content, though nothing of the answer is to follow
PARTS = 12  # rows without text do, behind a call
MARKED = 8  # a control token that closes and text do: the content begins behind that, as a rule
GAP = 9  # rows between two pieces are outside, each time
UNMARKED = 8  # and no control token among them says that they are a call
SHOWN = 13  # rows are outside though they stand before a call, not before what closes reasoning
SPACES = 11  # parts of characters do, which may be of white space as well
LEFT_OUT = 10  # rows with text are outside, though parts of characters own that
INSIDE = 28  # the content begins inside of a row
PARTIAL = 100  # the rows end before the content
"""What a cover costs; 0 is exact. Of several covers the cheapest is taken."""


class Option(NamedTuple):
    """One thing a row's token may stand for.

    `data` are its bytes; None for a pattern: `texts`, with up to `most` characters that are not
    ASCII between one and the next (`ANY`: for any text). `firm`: what is behind a gap does not lie
    beyond the content. `pick` is the index of the alternative it is, -1 for the row's own token.
    `holes`: how many U+FFFD show each of the gaps, none where nothing shows them.
    """

    data: bytes | None
    texts: tuple[bytes, ...] = PART
    pick: int = -1
    most: int = 1
    firm: bool = False
    holes: tuple[int, ...] = ()

    @property
    def least(self) -> int:
        """Bytes that parts of characters have at least, one for each U+FFFD that shows them."""
        return sum(self.holes)

    @property
    def is_blank(self) -> bool:
        """Whether it tells no text at all: a part of a character, or the end of the text."""
        return not (self.data if self.data is not None else any(self.texts))


class Piece(NamedTuple):
    """A kept row: its index, the bytes it owns in the content, what of them is its option's.

    `cut`: bytes clipped from the option's front; below 0: that it owns before it, since those of
    the character that it ends have gone out. `over`: bytes of it beyond the content's end.
    """

    row: int
    start: int
    end: int
    option: Option
    cut: int = 0
    over: int = 0


class Cover(NamedTuple):
    """The pieces in order; all other rows up to the last piece's are outside the content.

    `covered`: bytes of the content that the pieces own. `penalty`: how little is known of it.
    """

    pieces: list[Piece]
    covered: int
    cost: int
    penalty: float = 0


Rows = Sequence[Sequence[Option]]
Mark = Literal["", "opens", "closes"]
"""Whether a row is a control token, and whether it opens reasoning or a call: "closes" if not."""


class Hints(NamedTuple):
    """What is known of the rows besides their texts.

    `before`: shown text that stands before the content, its reasoning, whose rows may come first;
    `reasoned`: they were found. `own`: the first row that came with the last piece of the content;
    `lags`: that tells nothing, since rows may come before their text; `ahead`: they did. `last`:
    all rows are there, and nothing may stand behind the content but what ends it, one of the
    `stops` among that; `cut`: a length limit did, maybe within a character. `marks`: which rows
    are control tokens. `inner`: content stands before, and nothing came in between.
    """

    before: bytes = b""
    own: int = 0
    lags: bool = False
    ahead: bool = False
    last: bool = False
    cut: bool = False
    reasoned: bool = False
    stops: Sequence[bytes] = ()
    marks: Sequence[Mark] = ()
    inner: bool = False


class Joint(NamedTuple):
    """A row, and where in the content its text begins.

    `state`: the walk's own mark of it. `penalty`: how little is known of the split before it.
    `over`: the row before reaches over the content's end.
    """

    row: int
    at: int
    state: tuple[int, int] = (0, 0)
    penalty: float = 0
    over: bool = False


class Stretch(NamedTuple):
    """Rows that cover the content one after the other, as far as they do.

    `joints`: where it may be left, the furthest first. `whole`: the first of them is the content's
    end. `trace` returns the pieces up to one of them. `cut`: white space was clipped at its front.
    """

    first: int
    joints: list[Joint]
    whole: bool
    trace: Callable[[Joint], list[Piece]]
    cut: bool = False


class Walker(Protocol):
    """Finds the stretches of some rows in some content."""

    def walk(self, row: int, at: int) -> Stretch | None:
        """Return the longest stretch that begins with `row` at `at`; None if that does not fit."""

    def find_begins(self, row: int, at: int) -> list[int]:
        """Return the rows from `row` on with which a stretch may begin at `at`."""


def measure_space(data: bytes) -> int:
    """Return how many bytes of white space stand at the front, the ends of such characters too."""
    found = _SPACE.match(data)
    return found.end() if found else 0


def is_blank(row: Sequence[Option]) -> bool:
    """Say whether a row tells no text."""
    return all(option.is_blank for option in row)


def is_part(row: Sequence[Option]) -> bool:
    """Say whether a row tells no text, though it may have some: a part of a character."""
    return row[0].data is None and is_blank(row)


def is_space(row: Sequence[Option]) -> bool:
    """Say whether a row is white space."""
    data = row[0].data or b""
    return 0 < len(data) == measure_space(data)


def find_cut(data: bytes, content: bytes, at: int) -> int:
    """Return how many bytes of white space have to go from a text's front so that it may fit."""
    given = measure_space(data)
    cut = given - measure_space(content[at : at + given])
    return cut if cut < len(data) else 0


class Budget(Struct, eq=False):
    """States that may still be looked at, so that a hostile answer cannot stall the loop."""

    left: int = STEPS

    def spend(self, states: int) -> bool:
        """Take some; say whether any were left."""
        self.left -= states
        return self.left >= 0
