"""Latency profiles of devices: measuring one and finding its file."""
