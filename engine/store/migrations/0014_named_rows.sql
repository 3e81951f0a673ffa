-- Rows of a certificate that somebody named: a measurement of these tokens, in every head of every layer.
CREATE TABLE named_row (
    run_key          INTEGER NOT NULL,
    label            TEXT NOT NULL,         -- '16000:16384', 'last:64'
    batch_index      INTEGER NOT NULL,
    position         BIGINT NOT NULL,
    text             TEXT,                  -- NULL: the prompt's text was not kept
    "rows"           BIGINT NOT NULL,
    mean_error       DOUBLE NOT NULL,
    largest_error    DOUBLE NOT NULL,
    worst_layer      INTEGER NOT NULL,      -- of the largest error, like the next
    worst_head       INTEGER NOT NULL,
    nonfinite_rows   BIGINT NOT NULL,
    beyond_rounding  BIGINT NOT NULL,
    beyond_tolerance BIGINT,                -- NULL: no tolerance was asked for
    mass             DOUBLE,                -- NULL, like the next: no plan was given
    hit_rate         DOUBLE
);
