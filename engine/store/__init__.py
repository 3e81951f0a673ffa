"""What runs leave behind: the bundle (Parquet and a manifest), the DuckDB store, its queries and the spool.

``duckdb_store`` keeps runs in a file that only the web process opens, ``ducklake`` where several processes write. The
engine and the command line need ``bundle`` alone.
"""
