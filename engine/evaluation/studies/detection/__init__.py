"""Does a prompt's own certificate foretell that its answer is lost? One module measures, one analyses."""
