"""What runs leave behind: the bundle (Parquet and a manifest), the DuckDB store, its queries and the spool.

- A bundle: ``bundle`` writes and verifies it, ``unpacking`` reads its tables within bounds; ``tables`` says what they
  are, ``ranges`` and ``checks`` what may be in them; ``spool`` is where it arrives. The command line needs no more.
- The store: ``opening`` picks it, ``duckdb_file`` makes its tables and views, ``duckdb_store`` keeps runs in a file
  that only the web process opens (scale/ducklake.py where several write), ``owner_view`` is what a person sees of it;
  ``labels`` and ``trash`` are what people change.
- What pages ask: ``queries`` and ``*_queries``, each for the question of its name; ``read_cache`` keeps their answers.
"""
