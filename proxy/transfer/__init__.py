"""Stored completions and answers, to and from files."""
