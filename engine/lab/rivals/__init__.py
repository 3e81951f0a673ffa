"""Baselines on the same kernel and the same builders, so that a comparison measures the decision alone."""
