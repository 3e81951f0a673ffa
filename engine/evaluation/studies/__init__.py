"""One study a module: what it compares, its command and its result file."""
