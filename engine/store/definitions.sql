-- Definitions of the method, as queries need them; tests/engine/store/test_definitions.py holds them to the engine's.
CREATE OR REPLACE MACRO visible.gate_statistic(mass, recent_mass) AS  -- method/router.py; least() would skip a NULL
    CASE WHEN mass IS NOT NULL AND recent_mass IS NOT NULL THEN least(mass, recent_mass) END;
CREATE OR REPLACE MACRO visible.outcome(pattern, fallback) AS  -- rows.py
    CASE WHEN fallback = 'dense' THEN 'dense by fallback' WHEN fallback = 'expand' THEN 'expanded'
         WHEN pattern = 'dense' THEN 'dense by the router' ELSE 'kept' END;
CREATE OR REPLACE MACRO visible.layer_uncertified(lower_mass, tau_layer, sparse) AS  -- rows.py
    tau_layer IS NOT NULL AND sparse AND (lower_mass IS NULL OR isnan(lower_mass) OR lower_mass < tau_layer);
CREATE OR REPLACE MACRO visible.unit_uncertified(pattern, lower_mass, tau) AS  -- records.is_uncertified
    pattern <> 'dense' AND (lower_mass IS NULL OR isnan(lower_mass) OR lower_mass < tau);
-- Of a run that a server recorded, one in how many routed requests; NULL: somebody's analysis.
CREATE OR REPLACE MACRO visible.served_one_in(config_json) AS TRY_CAST(config_json->>'$.served.one_in' AS BIGINT);
CREATE OR REPLACE MACRO visible.utc_day(created_at) AS left(
    CASE WHEN regexp_matches(created_at, '(Z|[+-][0-9:]{4,6})$')
         THEN (TRY_CAST(created_at AS TIMESTAMPTZ) AT TIME ZONE 'UTC')::TEXT
         ELSE TRY_CAST(created_at AS TIMESTAMP)::TEXT END, 10);

-- One row a run, of what the list of runs says about its rows; a run's rows never change. ``first``: the least run_key.
CREATE OR REPLACE MACRO main.summaries_from(first) AS TABLE
SELECT * FROM (SELECT run_key FROM main.run WHERE run_key >= first)
LEFT JOIN (
    SELECT c.run_key, count(*) AS stored_units,
           count(*) FILTER (WHERE visible.unit_uncertified(c.pattern, c.lower_mass, r.tau)) AS uncertified_units
    FROM main.head_choice c JOIN main.run r USING (run_key) WHERE c.run_key >= first GROUP BY c.run_key
) USING (run_key)
LEFT JOIN (
    SELECT run_key, count(*) AS stored_layers, sum(planned_us) AS planned_us,
           sum(probe_us + index_us + route_us + kernel_us) AS measured_us
    FROM main.layer_run WHERE run_key >= first GROUP BY run_key
) USING (run_key)
LEFT JOIN (
    SELECT run_key, sum(violations)::BIGINT AS violations, max(executed_error) AS executed_error,
           max(mean_error) AS worst_unit_error
    FROM main.audit WHERE run_key >= first GROUP BY run_key
) USING (run_key)
LEFT JOIN (
    SELECT run_key, min(same_tokens) AS same_tokens, max(tokens) AS continued_tokens,
           1 + min(same_tokens) FILTER (WHERE same_tokens < tokens) AS first_difference
    FROM main.continuation WHERE run_key >= first GROUP BY run_key
) USING (run_key)
LEFT JOIN (
    SELECT run_key, count(*) AS loss_stretches, sum(tokens)::BIGINT AS loss_rows,
           CASE WHEN count("dense") = count(*) THEN sum("dense" * tokens) / sum(tokens) END AS loss_true  -- rows.py
    FROM main.loss WHERE run_key >= first GROUP BY run_key
) USING (run_key)
LEFT JOIN (
    SELECT l.run_key, min(l.lower_mass) AS least_layer_mass,
           count(*) FILTER (WHERE visible.layer_uncertified(l.lower_mass, r.tau_layer, c.sparse > 0))
           AS uncertified_layers
    FROM main.layer_run l JOIN main.run r USING (run_key)
    JOIN (SELECT run_key, layer, count(*) FILTER (WHERE pattern <> 'dense') AS sparse
          FROM main.head_choice WHERE run_key >= first GROUP BY run_key, layer) c USING (run_key, layer)
    WHERE r.tau_layer IS NOT NULL AND l.run_key >= first GROUP BY l.run_key
) USING (run_key);
