"""The backend's side: connections, failures, what a backend is."""
