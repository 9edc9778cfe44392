"""The documents' code blocks, and the commands in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTS = (
    ROOT / "README.md",
    ROOT / "engine" / "README.md",
    *[one for one in (ROOT / "deploy" / "README.md",) if one.exists()],
    *sorted(ROOT.glob("adapters/guides/*.md")),
    *sorted(ROOT.glob("proxy/guides/*.md")),
)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a document: its language and its text."""

    document: Path
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """A line of a shell block, as written and as words without redirections."""

    document: Path
    line: str

    @property
    def words(self) -> list[str]:
        """The command's words; variables before it are left out."""
        words = shlex.split(self.line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        return words

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}: {self.line}"


def blocks(language: str) -> list[Block]:
    """Return every block of a language in the documents."""
    return [
        Block(document, found[1], found[2])
        for document in DOCUMENTS
        for found in _BLOCK.finditer(document.read_text())
        if found[1] == language
    ]


def commands() -> list[Command]:
    """Return every command of the documents' shell blocks, lines that are continued joined."""
    return [
        Command(block.document, line.strip())
        for block in blocks("sh")
        for line in block.text.replace("\\\n", " ").splitlines()
        if line.strip() and not line.strip().startswith("#")
    ]
