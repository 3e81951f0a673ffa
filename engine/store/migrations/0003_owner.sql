-- Whose a run is. NULL: the one person of a dashboard without a login; that is also what every run was until now.

ALTER TABLE run ADD COLUMN owner TEXT;

-- They counted everybody's runs; engine/store/summaries.sql has their successors, which count one owner's.
DROP VIEW model;
DROP VIEW device;
DROP VIEW run_coverage;
DROP VIEW domain_coverage;
