"""The prompt as text: what heads read of it, what they lost, and who still reads a phrase."""
