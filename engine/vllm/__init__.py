"""vLLM, in its own environment or this one."""
