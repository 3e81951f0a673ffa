-- What a job does: 'analyse', as every job until now, 'profile' or 'calibrate'.
ALTER TABLE job ADD COLUMN kind TEXT NOT NULL DEFAULT 'analyse';
-- The name of the profile or calibration that a done job made.
ALTER TABLE job ADD COLUMN result TEXT;
