"""Index builders, one file per pattern family (paper section 3.1).

Every family is one *level map*: uint8 [B, H, M, N] holding, for each query block and KV block, the smallest budget
level that reads it (``NEVER`` for none). Budgets of a family are nested, so level b reads the blocks with
``level_map <= b``: one map scores all budgets, counts their tiles and lowers any of them to a row plan.
The sink block, every diagonal block and the block before them have level 0.
"""

from routesparse.engine.method.families.level_map import NEVER, FamilyIndex, build_indices, build_unprobed

__all__ = ["NEVER", "FamilyIndex", "build_indices", "build_unprobed"]
