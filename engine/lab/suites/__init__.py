"""Benchmark suites: prompts from files or generators, and scorers that equal the official ones."""
