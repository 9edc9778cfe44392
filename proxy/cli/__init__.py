"""The command `wellspoken`."""
