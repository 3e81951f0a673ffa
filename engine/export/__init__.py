"""A run for somebody else: as a ZIP of tables with a dictionary, and as one HTML page; and how both print numbers."""
