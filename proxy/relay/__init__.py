"""One request's way to a backend, and its answer's back."""
