"""Pages of data/results, written from the files that studies left; ``report`` runs them all."""
