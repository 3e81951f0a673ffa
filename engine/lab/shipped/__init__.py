"""Makes what ships in data/: sample runs and calibrations."""
