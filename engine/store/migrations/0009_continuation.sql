-- How the prompt goes on after either prefill: before, only the next token was compared.
CREATE TABLE continuation (
    run_key       INTEGER NOT NULL,
    batch_index   INTEGER NOT NULL,
    same_tokens   INTEGER NOT NULL,     -- leading tokens that are the same
    dense_tokens  BLOB NOT NULL,        -- int32 little endian, token ids
    routed_tokens BLOB NOT NULL,
    same_text     TEXT,                 -- NULL, like the next two: the prompt's text is not kept
    dense_text    TEXT,
    routed_text   TEXT
);
