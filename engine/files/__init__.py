"""Reading files of others within bounds of memory and time."""
