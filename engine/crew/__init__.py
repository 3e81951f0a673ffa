"""Work that processes share, here or on a Ray cluster: every piece is done once, whichever process ends."""
