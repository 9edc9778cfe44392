"""What types cannot say of backends: each by itself, and those that have a model together."""
