-- What says whether a run can be trusted: the calibration's fit, drift, and the full audit. NULL: not measured.

ALTER TABLE run ADD COLUMN calibration_mismatch TEXT;   -- what differed from the stamp of a calibration used by force
ALTER TABLE run ADD COLUMN delta DOUBLE;                -- delta_q of the conformal claim
ALTER TABLE run ADD COLUMN drift_distance DOUBLE;       -- of the prompt's descriptors from the calibration's
ALTER TABLE run ADD COLUMN drift_p DOUBLE;              -- conformal p-value of that distance
ALTER TABLE run ADD COLUMN drift_alarm BOOLEAN;
ALTER TABLE run ADD COLUMN unmet_units INTEGER;         -- policy strict: escalations without time
ALTER TABLE run ADD COLUMN logit_error DOUBLE;          -- ||z - z_dense|| / ||z_dense||, next token
ALTER TABLE run ADD COLUMN kl_nats DOUBLE;              -- KL(dense || routed), next token
ALTER TABLE layer_run ADD COLUMN forward_error DOUBLE;  -- against the dense forward's attention output
ALTER TABLE head_choice ADD COLUMN unmet BOOLEAN;
ALTER TABLE audit ADD COLUMN row_covered DOUBLE;        -- share of audited rows with mass >= row_lower_mass
ALTER TABLE audit ADD COLUMN forward_error DOUBLE;
