"""What each selection rule reads against what it loses, on the same prompts and the same kernel."""
