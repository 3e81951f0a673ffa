-- What the words of a prompt need: where its tokens begin, and the worst audited rows with what they did not read.
ALTER TABLE prompt ADD COLUMN token_starts BLOB;        -- NULL: written before they were kept

CREATE TABLE worst_row (
    run_key INTEGER NOT NULL,
    batch_index INTEGER NOT NULL,
    layer INTEGER NOT NULL,
    head INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    "rank" INTEGER NOT NULL,             -- among the unit's audited rows by error, 0 the worst
    "position" BIGINT NOT NULL,          -- token of the row
    mass DOUBLE NOT NULL,
    error DOUBLE NOT NULL,
    lost_blocks BLOB NOT NULL,           -- int32 little endian, KV blocks, most lost mass first
    lost_mass BLOB NOT NULL              -- float32 little endian
);
