"""What a backend is, and one file for each server."""
