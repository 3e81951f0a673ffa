"""Puts the method's six steps in order for one layer and one prompt segment, and keeps what was decided."""
