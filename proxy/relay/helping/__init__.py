"""What a backend is asked beside a request, so that its answer can be whole: counts, scores."""
