"""Servers as a scrape sees them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Ejection:
    """What takes a server out, and how often it did."""

    state: str = "in"
    ejections: int = 0


@dataclass
class Server:
    """A server with what a scrape reads of a target."""

    name: str
    outstanding: int = 0
    ejection: Ejection | None = None
