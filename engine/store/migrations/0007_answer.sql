-- What may come next, by dense attention and by the routed prefill: before, only the full audit compared them.
CREATE TABLE answer (
    run_key     INTEGER NOT NULL,
    batch_index INTEGER NOT NULL,
    token_id    INTEGER NOT NULL,
    text        TEXT,               -- NULL: the prompt's text is not kept
    dense       DOUBLE NOT NULL,    -- probability
    routed      DOUBLE NOT NULL,
    dense_rank  INTEGER NOT NULL,
    routed_rank INTEGER NOT NULL
);
