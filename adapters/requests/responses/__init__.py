"""OpenAI's responses (POST /v1/responses) as chat requests that any backend takes."""
