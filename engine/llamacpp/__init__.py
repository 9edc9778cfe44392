"""llama.cpp, in a process of its own."""
