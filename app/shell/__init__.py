"""What surrounds every page: who is here, what is open, where the address leads, where errors end."""
