"""Scorers of related work: what a KV block is worth to a query block, and the best blocks read.

QUEST, SparQ and dynamic sparse attention choose for one decoded query at a time, or choose single keys. On our kernel
a query block of 128 rows shares the KV blocks of 64 keys that it reads. So each file gives its paper's score,
row_shares.py turns rows of scores into one number a query block and KV block the way our own block score does
(kernels/block_score), and every rule reads the ``blocks`` best, the sink, the diagonal and the block before it among
them: they differ by the score alone. InfLLM chooses by itself, units of 128 keys beside a window (infllm.py).
"""
