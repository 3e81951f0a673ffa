-- Runs as ingested from bundles. Small tables have keys; fact tables have none and are inserted sorted by
-- (run_key, layer, head, segment, batch_index, candidate). NULL means "not measured".

CREATE SEQUENCE run_key_sequence;

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

CREATE TABLE run (
    run_key INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    bundle_id TEXT NOT NULL,
    created_at TEXT NOT NULL,            -- ISO 8601, UTC
    model TEXT NOT NULL,
    model_revision TEXT NOT NULL,
    tokenizer_hash TEXT NOT NULL,
    calibration TEXT,
    profile TEXT NOT NULL,
    policy TEXT NOT NULL,
    tau DOUBLE NOT NULL,
    gate DOUBLE NOT NULL,
    confidence DOUBLE NOT NULL,
    budget TEXT,
    probe_mode TEXT NOT NULL,
    seed BIGINT NOT NULL,
    config_json TEXT NOT NULL,
    prompt_name TEXT NOT NULL,
    prompt_sha256 TEXT NOT NULL,
    domain TEXT,
    batch INTEGER NOT NULL,
    tokens BIGINT NOT NULL,
    layers INTEGER NOT NULL,
    heads INTEGER NOT NULL,
    kv_heads INTEGER NOT NULL,
    head_dim INTEGER NOT NULL,
    segments INTEGER NOT NULL,
    block_q INTEGER NOT NULL,
    block_k INTEGER NOT NULL,
    device TEXT NOT NULL,
    dtype TEXT NOT NULL,
    versions_json TEXT NOT NULL,
    git_commit TEXT,
    routed BOOLEAN NOT NULL,
    probe_ms DOUBLE NOT NULL,
    index_ms DOUBLE NOT NULL,
    route_ms DOUBLE NOT NULL,
    kernel_ms DOUBLE NOT NULL,
    total_ms DOUBLE NOT NULL,
    dense_ms DOUBLE,
    density DOUBLE,
    units INTEGER NOT NULL,
    sparse_units INTEGER NOT NULL,
    expanded_units INTEGER NOT NULL,
    dense_fallback_units INTEGER NOT NULL,
    dense_router_units INTEGER NOT NULL,
    over_budget_layers INTEGER NOT NULL,
    audit_depth TEXT NOT NULL,
    audit_rows INTEGER NOT NULL,
    coverage DOUBLE,
    mean_error DOUBLE,
    max_error DOUBLE,
    top1_agreement DOUBLE
);

CREATE TABLE prompt (
    run_key INTEGER PRIMARY KEY,
    text TEXT NOT NULL,
    block_starts BLOB NOT NULL           -- int32 little endian, character offsets of the KV blocks
);

CREATE TABLE layer_run (
    run_key INTEGER NOT NULL,
    layer INTEGER NOT NULL,
    limit_us DOUBLE,
    planned_us DOUBLE NOT NULL,
    dense_us DOUBLE NOT NULL,
    probe_us DOUBLE NOT NULL,
    index_us DOUBLE NOT NULL,
    route_us DOUBLE NOT NULL,
    kernel_us DOUBLE NOT NULL,
    density DOUBLE NOT NULL,
    over_budget BOOLEAN NOT NULL
);

CREATE TABLE head_choice (
    run_key INTEGER NOT NULL,
    batch_index INTEGER NOT NULL,
    layer INTEGER NOT NULL,
    head INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    first_token BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    body_tokens BIGINT NOT NULL,
    candidate INTEGER NOT NULL,
    pattern TEXT NOT NULL,
    budget TEXT NOT NULL,
    density DOUBLE NOT NULL,
    mass DOUBLE NOT NULL,
    recent_mass DOUBLE NOT NULL,
    gate DOUBLE NOT NULL,
    lower_mass DOUBLE,
    conformal_lower_mass DOUBLE,
    row_lower_mass DOUBLE,
    disagreement DOUBLE NOT NULL,
    entropy DOUBLE NOT NULL,
    local_band DOUBLE NOT NULL,
    agreement DOUBLE NOT NULL,
    risk DOUBLE NOT NULL,
    kernel_us DOUBLE NOT NULL,
    tests INTEGER NOT NULL,
    fallback TEXT,
    reason TEXT NOT NULL
);

CREATE TABLE candidate_score (
    run_key INTEGER NOT NULL,
    batch_index INTEGER NOT NULL,
    layer INTEGER NOT NULL,
    head INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    candidate INTEGER NOT NULL,
    pattern TEXT NOT NULL,
    budget TEXT NOT NULL,
    density DOUBLE NOT NULL,
    mass DOUBLE NOT NULL,
    recent_mass DOUBLE NOT NULL,
    disagreement DOUBLE NOT NULL,
    predicted_error DOUBLE,
    risk DOUBLE NOT NULL,
    kernel_us DOUBLE NOT NULL,
    admissible BOOLEAN NOT NULL,
    chosen BOOLEAN NOT NULL,
    reason TEXT NOT NULL
);

CREATE TABLE fallback_event (
    run_key INTEGER NOT NULL,
    batch_index INTEGER NOT NULL,
    layer INTEGER NOT NULL,
    head INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    test INTEGER NOT NULL,
    from_candidate INTEGER NOT NULL,
    lower_mass DOUBLE NOT NULL,
    tau DOUBLE NOT NULL,
    kind TEXT NOT NULL,
    to_candidate INTEGER NOT NULL,
    paid_us DOUBLE NOT NULL
);

CREATE TABLE audit (
    run_key INTEGER NOT NULL,
    batch_index INTEGER NOT NULL,
    layer INTEGER NOT NULL,
    head INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    "rows" INTEGER NOT NULL,
    mass DOUBLE NOT NULL,
    min_mass DOUBLE NOT NULL,
    lower_mass DOUBLE,
    covered BOOLEAN,
    mean_error DOUBLE NOT NULL,
    max_error DOUBLE NOT NULL,
    bound_paper DOUBLE NOT NULL,
    bound_tight DOUBLE NOT NULL,
    violations INTEGER NOT NULL
);

-- The float16 block mass stays in the bundle; this is its 8-bit thumbnail (engine/store/thumbnail.py).
CREATE TABLE probe_meta (
    run_key INTEGER NOT NULL,
    batch_index INTEGER NOT NULL,
    layer INTEGER NOT NULL,
    head INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    "rows" INTEGER NOT NULL,
    columns INTEGER NOT NULL,
    pool INTEGER NOT NULL,               -- key blocks per heatmap column of the full probe
    thumb_rows INTEGER NOT NULL,
    thumb_columns INTEGER NOT NULL,
    row_pool INTEGER NOT NULL,           -- probe rows per thumbnail row
    column_pool INTEGER NOT NULL,        -- full columns per thumbnail column
    thumb_scale DOUBLE NOT NULL,         -- mass = thumb_scale * (value / 255)^2
    thumb_positions BLOB NOT NULL,       -- int32 little endian, last position of each thumbnail row
    thumb_kinds BLOB NOT NULL,           -- uint8, bit k set: the row holds probe rows of kind k
    thumb BLOB NOT NULL                  -- uint8 [thumb_rows, thumb_columns]
);

-- Derived, so that they can't go stale when a run is deleted.
CREATE VIEW model AS
SELECT model, model_revision, any_value(tokenizer_hash) AS tokenizer_hash, any_value(layers) AS layers,
       any_value(heads) AS heads, any_value(kv_heads) AS kv_heads, any_value(head_dim) AS head_dim,
       count(*) AS runs
FROM run GROUP BY model, model_revision;

CREATE VIEW device AS
SELECT device, dtype, count(*) AS runs, min(created_at) AS first_run_at, max(created_at) AS last_run_at
FROM run GROUP BY device, dtype;

-- Coverage of selected sparse units; the unit of evidence is the prompt, so a run is one row.
CREATE VIEW run_coverage AS
SELECT run_key, count(covered) AS audited_units, count(*) FILTER (WHERE covered) AS covered_units,
       avg(covered::INTEGER) AS coverage, min(mass - lower_mass) AS least_margin, max(mean_error) AS worst_error,
       sum(violations) AS violations
FROM audit GROUP BY run_key;

-- Over the runs of one domain: mean, spread and minimum of per-prompt coverage (never pooled over heads).
CREATE VIEW domain_coverage AS
SELECT domain, model, count(coverage) AS prompts, avg(coverage) AS mean_coverage,
       stddev_samp(coverage) AS sd_coverage, min(coverage) AS least_coverage, any_value(confidence) AS nominal
FROM run WHERE coverage IS NOT NULL GROUP BY domain, model;
