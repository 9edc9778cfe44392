"""A token's text, bytes and number."""
