"""A kept prompt: its text, and which characters its blocks and tokens are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Words:
    """A kept prompt. block_starts int32 [N + 1] and token_starts int32 [tokens + 1] are characters of ``text``;
    token_starts is None where the run was made before they were kept."""

    text: str
    block_starts: np.ndarray
    token_starts: np.ndarray | None

    def span_of_block(self, block: int, blocks: int = 1) -> tuple[int, int]:
        """First character and end of some KV blocks, those beyond the prompt left out."""
        last = len(self.block_starts) - 1
        return int(self.block_starts[min(block, last)]), int(self.block_starts[min(block + blocks, last)])

    def span_of_token(self, token: int, block_tokens: int, tokens: int = 1) -> tuple[int, int]:
        """First character and end of some tokens, or of their KV blocks where tokens were not kept."""
        if self.token_starts is None:
            block = token // block_tokens
            return self.span_of_block(block, (token + tokens - 1) // block_tokens - block + 1)
        last = len(self.token_starts) - 1
        return int(self.token_starts[min(token, last)]), int(self.token_starts[min(token + tokens, last)])

    def blocks_of(self, start: int, end: int) -> tuple[int, int]:
        """The first and the last KV block that characters [start, end) lie in."""
        first, last = np.searchsorted(self.block_starts, [start, max(start, end - 1)], side="right") - 1
        top = len(self.block_starts) - 2
        return int(np.clip(first, 0, top)), int(np.clip(last, 0, top))
