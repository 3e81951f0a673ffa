-- Times are seconds since 1970 (UTC), as every process of the queue reads them. scale/queue.py translates the types.
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
    owner TEXT, -- NULL: the one person of a dashboard without a login
    kind TEXT NOT NULL DEFAULT 'analyse', -- or 'profile', 'calibrate'
    result TEXT, -- the name of the profile or calibration that a done job made
    sweep TEXT, -- which jobs were submitted together, one for each value of one setting; NULL: a job of its own
    CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CHECK ((state = 'done') = (run_id IS NOT NULL)),
    CHECK ((state = 'failed') = (error_kind IS NOT NULL))
);
CREATE INDEX job_state ON job (state, seq);
CREATE INDEX job_sweep ON job (sweep, seq) WHERE sweep IS NOT NULL;
CREATE TABLE worker (
    id TEXT PRIMARY KEY,
    started_at REAL NOT NULL,
    seen_at REAL NOT NULL,
    device TEXT -- what its jobs run on, as JSON (presence.py); NULL: it has not said
);
