"""Stored completions in PostgreSQL, which several proxies share."""
