-- Certificates of any attention (routesparse certify), beside the runs: same keys and bundles, nothing routed.
CREATE TABLE certificate (
    run_key        INTEGER PRIMARY KEY,     -- of run_key_sequence, so unique among runs and certificates
    run_id         TEXT NOT NULL UNIQUE,
    bundle_id      TEXT NOT NULL,
    created_at     TEXT NOT NULL,           -- ISO 8601, UTC
    function       TEXT NOT NULL,
    plan           TEXT,                    -- NULL: no plan was given
    model          TEXT NOT NULL,
    model_revision TEXT NOT NULL,
    tokenizer_hash TEXT NOT NULL,
    prompt_name    TEXT NOT NULL,
    prompt_sha256  TEXT NOT NULL,
    batch          INTEGER NOT NULL,
    tokens         BIGINT NOT NULL,
    layers         INTEGER NOT NULL,
    heads          INTEGER NOT NULL,
    kv_heads       INTEGER NOT NULL,
    head_dim       INTEGER NOT NULL,
    device         TEXT NOT NULL,
    dtype          TEXT NOT NULL,
    versions_json  TEXT NOT NULL,
    git_commit     TEXT,
    seed           BIGINT NOT NULL,
    config_json    TEXT NOT NULL,
    sampled_rows   INTEGER NOT NULL,
    confidence     DOUBLE NOT NULL,
    mass_level     DOUBLE NOT NULL,
    tolerance      DOUBLE,                  -- NULL: rounding only
    most_beyond    DOUBLE NOT NULL,
    dense_layers   INTEGER NOT NULL,
    verdict        TEXT NOT NULL,
    sentence       TEXT NOT NULL,
    findings_json  TEXT NOT NULL,
    owner          TEXT
);

CREATE TABLE claim (
    run_key                INTEGER NOT NULL,
    scope                  TEXT NOT NULL,   -- 'pass', 'layer' or 'head'
    batch_index            INTEGER,         -- NULL, like layer and head: pooled over all
    layer                  INTEGER,
    head                   INTEGER,
    worst_position         BIGINT,
    "rows"                 BIGINT NOT NULL,
    mean_error             DOUBLE NOT NULL,
    mean_error_bound       DOUBLE NOT NULL,
    largest_error          DOUBLE NOT NULL,
    share_within           DOUBLE NOT NULL,
    nonfinite_rows         BIGINT NOT NULL,
    beyond_rounding        BIGINT NOT NULL,
    beyond_rounding_bound  DOUBLE NOT NULL,
    beyond_tolerance       BIGINT,          -- NULL, like the next: no tolerance was asked for
    beyond_tolerance_bound DOUBLE,
    mass                   DOUBLE,          -- NULL, like the rest: no plan was given
    mass_bound             DOUBLE,
    low_rows               BIGINT,
    low_rows_bound         DOUBLE,
    hit_rate               DOUBLE,
    hit_rate_bound         DOUBLE,
    plan_error             DOUBLE,
    disagreement           DOUBLE
);
