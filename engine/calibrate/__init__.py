"""Makes a calibration: prompts, measured windows, and what is fitted to them."""
