-- The store's tables beside those that bundles have (duckdb_file.py); NULL means "not measured".

CREATE TABLE schema_migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TIMESTAMP NOT NULL);

CREATE SEQUENCE run_key_sequence;  -- of runs and certificates together

-- One row per bundle that was ever ingested; deleted_at keeps a deleted sample from coming back by itself.
CREATE TABLE ingested_bundle (
    bundle_id TEXT PRIMARY KEY,          -- sha256 of manifest.json
    run_id TEXT NOT NULL,
    origin TEXT NOT NULL,                -- 'spool' or 'sample'
    schema_version INTEGER NOT NULL,
    size_bytes BIGINT NOT NULL,
    ingested_at TIMESTAMP NOT NULL,      -- UTC
    deleted_at TIMESTAMP
);

-- The float16 block mass stays in the bundle; this is its 8-bit thumbnail (thumbnail.py).
CREATE TABLE probe_meta (
    run_key INTEGER NOT NULL,
    batch_index BIGINT NOT NULL,
    layer BIGINT NOT NULL,
    head BIGINT NOT NULL,
    segment BIGINT NOT NULL,
    "rows" BIGINT NOT NULL,
    columns BIGINT NOT NULL,
    pool BIGINT NOT NULL,                -- key blocks per heatmap column of the full probe
    thumb_rows BIGINT NOT NULL,
    thumb_columns BIGINT NOT NULL,
    row_pool BIGINT NOT NULL,            -- probe rows per thumbnail row
    column_pool BIGINT NOT NULL,         -- full columns per thumbnail column
    thumb_scale DOUBLE NOT NULL,         -- mass = thumb_scale * (value / 255)^2
    thumb_positions BLOB NOT NULL,       -- int32 little endian, last position of each thumbnail row
    thumb_kinds BLOB NOT NULL,           -- uint8, bit k set: the row holds probe rows of kind k
    thumb BLOB NOT NULL                  -- uint8 [thumb_rows, thumb_columns]
);

-- What a person adds to a run and its bundle never learns. One row for each person and run; it outlives a deletion that
-- is undone. owner NULL: the one person of a dashboard without a login.
CREATE TABLE run_label (
    run_id TEXT NOT NULL,
    owner  TEXT,
    name   TEXT,                -- NULL: the prompt's own
    notes  TEXT,
    tags   TEXT[] NOT NULL,
    pinned BOOLEAN NOT NULL     -- the baseline; one run a person at most
);

-- What the trash folder holds, so that pages list it without opening bundles.
CREATE TABLE trashed_run (
    run_id      TEXT NOT NULL,
    owner       TEXT,
    prompt_name TEXT NOT NULL,
    tokens      BIGINT NOT NULL,
    created_at  TEXT NOT NULL,
    deleted_at  TIMESTAMP NOT NULL   -- UTC
);

