"""What runs leave behind: the bundle (Parquet and a manifest), the DuckDB store, its queries and the spool.

Only ``duckdb_store`` imports duckdb, and only the web process opens the database file. The engine and the
command line need ``bundle`` alone.
"""
