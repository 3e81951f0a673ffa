"""Jobs: what the dashboard asks for, run by a worker in a process of its own.

``request`` says what a job is, ``queue`` keeps jobs, in SQLite or on PostgreSQL (the web process imports these two:
no torch, no duckdb), ``worker`` runs them. ``staging`` is how a job ends exactly once although its result lies in two
places.
"""
