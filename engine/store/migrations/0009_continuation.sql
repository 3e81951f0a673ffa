-- How the prompt goes on after either prefill: before, only the next token was compared.
CREATE TABLE continuation (
    run_key       INTEGER NOT NULL,
    batch_index   INTEGER NOT NULL,
    tokens        INTEGER NOT NULL,     -- of the longer side
    same_tokens   INTEGER NOT NULL,     -- leading ones that are the same
    same_text     TEXT,                 -- NULL, like the next two: the prompt's text is not kept
    dense_text    TEXT,
    routed_text   TEXT
);
