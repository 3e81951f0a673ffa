"""Statistics over prompts and documents: coverage with its intervals, and differences between runs."""
