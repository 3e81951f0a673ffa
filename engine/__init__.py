"""The RouteSparse engine: the method, the store, the evaluation and the command line."""
