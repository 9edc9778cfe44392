"""The client's side: connections, requests, keys, responses."""
