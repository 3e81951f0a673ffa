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
