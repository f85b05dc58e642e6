"""A Spark cluster on this machine: a standalone master, its workers and a Connect server, each in its own process."""
