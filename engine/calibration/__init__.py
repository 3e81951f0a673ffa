"""A calibration that exists: its artifact and stamp, the drift of prompts from it, replays under it."""
