-- What is kept of a run for lists counts its stored rows too (definitions.sql); it is made anew at the start that follows.
-- An older version, which would make it without these columns again, refuses a store of this schema.
DROP TABLE IF EXISTS run_summary;
