"""Patterns of related work: which keys a row reads, by position, chance or hash; no score.

The papers define pairs (row, key); the kernel reads tiles of 128 rows and 64 keys. A tile is read where one of its
pairs is, so a plan reads at least what its paper names.
"""
