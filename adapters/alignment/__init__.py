"""Which logprob entries are of the content, and what each of them owns of it."""
