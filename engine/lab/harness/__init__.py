"""lm-evaluation-harness on a routed model."""
