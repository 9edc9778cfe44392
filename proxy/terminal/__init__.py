"""A window that people look at: its colours, its width, and a line of progress in it."""
