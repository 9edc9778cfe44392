"""What one request goes through: files, functions, moves between files, and calls counted."""
