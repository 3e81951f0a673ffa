-- Derived from one owner's rows, so that they can't go stale when a run is deleted.
CREATE OR REPLACE VIEW visible.model AS
SELECT model, model_revision, any_value(tokenizer_hash) AS tokenizer_hash, any_value(layers) AS layers,
       any_value(heads) AS heads, any_value(kv_heads) AS kv_heads, any_value(head_dim) AS head_dim,
       count(*) AS runs
FROM visible.run GROUP BY model, model_revision;

CREATE OR REPLACE VIEW visible.device AS
SELECT device, dtype, count(*) AS runs, min(created_at) AS first_run_at, max(created_at) AS last_run_at
FROM visible.run GROUP BY device, dtype;

CREATE OR REPLACE VIEW visible.head_choice AS
SELECT c.*, visible.unit_uncertified(c.pattern, c.lower_mass, r.tau) AS uncertified
FROM main.head_choice c JOIN visible.run r USING (run_key);

-- Coverage of selected sparse units; the unit of evidence is the prompt, so a run is one row.
CREATE OR REPLACE VIEW visible.run_coverage AS
SELECT run_key, count(covered) AS audited_units, count(*) FILTER (WHERE covered) AS covered_units,
       avg(covered::INTEGER) AS coverage, min(mass - lower_mass) AS least_margin, max(mean_error) AS worst_error,
       sum(violations) AS violations
FROM visible.audit GROUP BY run_key;

-- Over the runs of one domain: mean, spread and minimum of per-prompt coverage (never pooled over heads).
CREATE OR REPLACE VIEW visible.domain_coverage AS
SELECT domain, model, count(coverage) AS prompts, avg(coverage) AS mean_coverage,
       stddev_samp(coverage) AS sd_coverage, min(coverage) AS least_coverage, any_value(confidence) AS nominal
FROM visible.run WHERE coverage IS NOT NULL GROUP BY domain, model;
