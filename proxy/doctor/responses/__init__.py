"""OpenAI's Responses API as the doctor knows it: its shapes, its rules, and the probes of it."""
