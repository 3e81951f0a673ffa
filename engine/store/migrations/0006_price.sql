-- Policy "priced": one price for all heads, a certificate for the layer, and a lambda of every unit's own.
ALTER TABLE run ADD COLUMN price DOUBLE;                 -- NULL: another policy
ALTER TABLE run ADD COLUMN tau_layer DOUBLE;             -- NULL: another policy
ALTER TABLE run ALTER COLUMN gate_threshold DROP NOT NULL;
ALTER TABLE layer_run ADD COLUMN lower_mass DOUBLE;      -- NULL: the layer was not certified
ALTER TABLE layer_run ADD COLUMN raised INTEGER;         -- NULL: the layer was not certified
ALTER TABLE head_choice ADD COLUMN gate_threshold DOUBLE;
ALTER TABLE fallback_event ADD COLUMN scope VARCHAR;     -- NULL: written before layers had certificates
