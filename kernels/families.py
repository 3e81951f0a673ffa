"""What the operations know of pattern families; torch is not loaded.

The naive twins take any number of families. The Triton kernels of ``retained_mass``, ``lower_plan`` and ``pictures``
have a branch for each of four: their launchers refuse any other set, which would be read as one of these.
"""

from __future__ import annotations

FAMILIES = (
    "a_shape",
    "vertical_slash",
    "block_sparse",
    "floor",
)  # in the order of the kernels' branches
DENSE = -1  # the number of a candidate that is no family's
NEVER = 255  # in a level map: no budget of the family reads this block


def check_known(names: tuple[str, ...]) -> None:
    """Errors: ValueError unless names are the kernels' own families, in their order."""
    if names == FAMILIES:
        return
    unknown = [name for name in names if name not in FAMILIES]
    told = (
        f"pattern {', '.join(map(repr, unknown))}"
        if unknown
        else f"{', '.join(names)} alone or in this order"
    )
    raise ValueError(
        f"the kernels do not know {told}, only {', '.join(FAMILIES)}; add it to kernels/families.py and to the "
        "kernels of retained_mass, lower_plan and pictures, or run on the CPU"
    )
