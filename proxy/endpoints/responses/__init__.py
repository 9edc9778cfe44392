"""OpenAI's Responses API: responses are created as chats are, and kept to be continued and read."""
