"""What a backend is, how it is told from others, and what a request becomes for it."""
