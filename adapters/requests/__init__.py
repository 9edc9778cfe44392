"""What a client may ask: shapes, bounds, errors."""
