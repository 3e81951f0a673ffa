-- Times are seconds since 1970 (UTC), as every process of this machine reads them.
CREATE TABLE job (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled')),
    label TEXT NOT NULL,
    request_json TEXT NOT NULL,
    prompt_sha256 TEXT NOT NULL,
    prompt_bytes INTEGER NOT NULL,
    keep_text INTEGER NOT NULL,
    created_at REAL NOT NULL,
    started_at REAL,
    finished_at REAL,
    attempt INTEGER NOT NULL DEFAULT 0,
    losses INTEGER NOT NULL DEFAULT 0,
    worker TEXT,
    lease_until REAL,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    stage TEXT,
    done INTEGER,
    total INTEGER,
    run_id TEXT,
    published INTEGER NOT NULL DEFAULT 0,
    error_kind TEXT,
    error_message TEXT,
    log_id TEXT,
    CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CHECK ((state = 'done') = (run_id IS NOT NULL)),
    CHECK ((state = 'failed') = (error_kind IS NOT NULL))
);
CREATE INDEX job_state ON job (state, seq);
CREATE TABLE worker (
    id TEXT PRIMARY KEY,
    started_at REAL NOT NULL,
    seen_at REAL NOT NULL
);
