"""A prompt: its text, its tokens, and the lines of a .jsonl file that hold one."""
