"""Several servers of one model: which of them gets a request, and where it goes from there."""
