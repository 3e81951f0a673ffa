-- Which runs were submitted together, one for each value of one setting. NULL: a run of its own.
ALTER TABLE run ADD COLUMN sweep TEXT;
