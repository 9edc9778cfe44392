"""What `make bench` runs: the translation alone, and the proxy beside a bare pass-through."""
