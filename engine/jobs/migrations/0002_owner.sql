-- Whose a job is. NULL: the one person of a dashboard without a login; that is also what every job was until now.
ALTER TABLE job ADD COLUMN owner TEXT;
