"""From a configuration to a running service, its reloads and its end."""
