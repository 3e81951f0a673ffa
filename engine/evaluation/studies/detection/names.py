"""What measuring, analysis and page agree on: rows that are looked at, claims, alarms, controls."""

from __future__ import annotations

# Far rows have their largest key neither among the prompt's first tokens nor among those just before the row.
SINK_TOKENS, NEAR_TOKENS = 64, 1_024
CHOSEN_ROWS = 32  # of the question and of the needles each, spread over them
TOLERANCES = (0.05, 0.1, 0.2, 0.5)  # relative output errors at which the verdict is asked
ALARMS = ("alarm", *(f"alarm_{tolerance:g}" for tolerance in TOLERANCES))
WHOLE = ("dense", "dense_kernel")  # must lose nothing and raise no alarm
CONTROL = "window"  # must lose
# claim: the column of a row, and whether more of it means more trouble (1) or less (-1)
CLAIMS: dict[str, tuple[str, int]] = {
    "area": ("area", -1),
    "mass": ("mass_bound", -1),
    "low_rows": ("low_rows", 1),
    "hit_rate": ("hit_rate", -1),
    "error": ("error", 1),
    "worst_head": ("worst_head", 1),
    "far_hit_rate": ("far_hit_rate", -1),
    "far_low_rows": ("far_low_rows", 1),
    "question_hit_rate": ("question_hit_rate", -1),
    "question_error": ("question_error", 1),
    "needles_hit_rate": ("needles_hit_rate", -1),
    "needles_error": ("needles_error", 1),
}
