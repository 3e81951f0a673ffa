-- One name from the paper to the page: lambda is the gate threshold, g the gate statistic.
ALTER TABLE run RENAME COLUMN gate TO gate_threshold;
ALTER TABLE head_choice RENAME COLUMN gate TO gate_statistic;
