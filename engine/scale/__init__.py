"""Many hosts in one place: a store of many writers, a queue and a crew of several hosts. Optional; README.md."""
