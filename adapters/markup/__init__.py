"""Calls and thoughts that a server leaves in the text: how models write them."""
