-- The kernel's output against the audit's: before, the audit rebuilt the rows and never looked at what ran.

ALTER TABLE audit ADD COLUMN executed_error DOUBLE;     -- NULL: not compared
