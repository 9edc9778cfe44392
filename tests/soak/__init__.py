"""What only time and numbers show: leaks, drains, restarts, kills, memory; and their bounds."""
