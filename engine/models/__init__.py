"""Models and tokenizers from folders and hubs: finding, loading, counting tokens."""
