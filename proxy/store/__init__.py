"""Stored completions: kept in SQLite or PostgreSQL, written in groups, found by their owner."""
