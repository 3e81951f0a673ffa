"""What went wrong, as a kind that pages can show and a sentence that says what to do."""

from __future__ import annotations

from routesparse.engine import errors
from routesparse.engine.errors import disk_is_full, is_out_of_memory
from routesparse.engine.jobs.job import FailureKind
from routesparse.engine.prompts.text import is_panic

# The first that fits: children before their parents.
_TYPED: tuple[tuple[type[Exception], FailureKind], ...] = (
    (errors.PromptError, "prompt"),
    (errors.UnsupportedModelError, "unsupported_model"),
    (errors.ModelError, "model"),
    (errors.CalibrationError, "calibration"),
    (errors.ProfileError, "profile"),
    (errors.ConfigError, "config"),
    (errors.BundleError, "bundle"),
    (errors.NumericsError, "numerics"),
    (errors.StoreError, "store"),
)


def classify(error: BaseException, log_id: str) -> tuple[FailureKind, str]:
    """Kind and message of a failed analysis. An unexpected error's own message stays out: it may quote the prompt."""
    if disk_is_full(error):
        if isinstance(error, errors.StoreError):
            return "disk_full", str(error)
        return "disk_full", "the disk is full; nothing half-written stays. Free space and submit again"
    if is_panic(error):
        return (
            "model",
            "the model's tokenizer fails in its own code; check tokenizer.json, or take another prompt",
        )
    if is_out_of_memory(error):
        return (
            "out_of_memory",
            "out of memory while running this prompt; shorten it, choose a smaller model, or free memory",
        )
    for kind, name in _TYPED:
        if isinstance(error, kind):
            return name, str(error)
    return (
        "unexpected",
        f"unexpected {type(error).__name__}; the worker's log has its place under id {log_id}. "
        "Please report it with that entry",
    )
