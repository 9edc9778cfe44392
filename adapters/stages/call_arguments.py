"""The arguments of one tool call as they come in pieces, and what those are together."""

from __future__ import annotations

from msgspec import DecodeError, Struct, json


class CallArguments(Struct, eq=False):
    """Arguments as they come; looks at each piece once, and only when asked for `complete`."""

    pieces: list[str] = []
    size: int = 0
    looked: int = 0
    began: bool = False
    depth: int = 0
    quoted: bool = False
    slash: bool = False

    def add(self, piece: str) -> None:
        """Take what comes next."""
        self.pieces.append(piece)
        self.size += len(piece)

    def begins(self, text: str) -> bool:
        """Say whether a text is the object's beginning that came, and maybe more of it."""
        if not 0 < self.size <= len(text) or text[0] != "{":
            return False
        said = "".join(self.pieces)
        if not text.startswith(said):
            return False
        if text == said:  # no object goes on so, but where a value within it begins
            self.complete()
            return self.quoted or said.rstrip()[-1] not in ":[,"
        all_of_it = CallArguments([text])
        all_of_it.complete()
        return all_of_it.depth >= 0  # else it closes what came before: a value within that

    def complete(self) -> bool:
        """Say whether what came is a whole JSON object, array or text."""
        for piece in self.pieces[self.looked :]:
            self._look(piece)
        self.looked = len(self.pieces)
        return self.began and self.depth <= 0 and not self.quoted

    def equals(self, text: str) -> bool:
        """Say whether a text is the same JSON."""
        try:
            return bool(json.decode("".join(self.pieces)) == json.decode(text))
        except DecodeError:
            return False

    def _look(self, piece: str) -> None:
        for mark in piece:
            if self.slash:
                self.slash = False
            elif mark == "\\":
                self.slash = self.quoted
            elif mark == '"':
                self.quoted = not self.quoted
                self.began = True
            elif self.quoted:
                continue
            elif mark in "{[":
                self.began = True
                self.depth += 1
            elif mark in "}]":
                self.depth -= 1
