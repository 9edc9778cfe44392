"""What one client, one key and all requests together may hold and ask for."""
