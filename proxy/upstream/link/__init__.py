"""The connections to a backend, below the client: opened, kept, read, closed."""
