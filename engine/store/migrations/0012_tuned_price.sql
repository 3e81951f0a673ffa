-- The quality target that set a run's price (routesparse tune), by its name. NULL: the price was chosen by hand.
ALTER TABLE run ADD COLUMN tuned_price TEXT;
