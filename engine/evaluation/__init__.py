"""Studies whose numbers stand in the README and in data/results; each is one command that writes one JSON file."""
