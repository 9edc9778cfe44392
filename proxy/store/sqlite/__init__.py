"""Stored completions in one SQLite file."""
