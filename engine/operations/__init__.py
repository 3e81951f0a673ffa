"""Keeping a home running: backup, retention, metrics. No torch, duckdb or streamlit."""
