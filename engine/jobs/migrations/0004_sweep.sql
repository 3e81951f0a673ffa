-- Which jobs were submitted together, one for each value of one setting. NULL: a job of its own, as every job was until now.
ALTER TABLE job ADD COLUMN sweep TEXT;
CREATE INDEX job_sweep ON job (sweep, seq) WHERE sweep IS NOT NULL;
