"""`make demo`: what real backends say, and what a client gets through the proxy."""
