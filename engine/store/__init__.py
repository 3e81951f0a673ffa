"""What runs leave behind: the bundle (Parquet and a manifest), the DuckDB store, its queries and the spool.

``duckdb_store`` keeps runs in a file that only the web process opens, ``ducklake`` where several processes write. The
engine and the command line need ``bundle`` alone.

- A bundle: ``bundle`` writes and verifies it, ``unpacking`` reads its tables within bounds, ``tables`` and ``ranges``
  say what may be in it, ``spool`` is where it arrives and ``bundle_moves`` how it gets into the store.
- The store: ``opening`` picks it, ``schema`` brings its tables up to date, ``owner_view`` is what a person sees of it;
  ``labels`` and ``trash`` are what people change, ``moving`` and ``compact`` work on the whole.
- What pages ask: ``queries`` and ``*_queries``, each for the page or the question of its name; ``read_cache`` keeps
  their answers.
"""
