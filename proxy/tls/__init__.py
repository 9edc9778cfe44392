"""Certificates and keys of the wires: what TLS with clients and with backends uses."""
