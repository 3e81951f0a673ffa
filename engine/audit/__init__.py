"""Exact attention beside the routed one: audited rows, a dense forward pass, every candidate's true mass."""
