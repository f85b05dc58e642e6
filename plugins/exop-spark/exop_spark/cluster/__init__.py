"""A Spark cluster on this machine: a standalone master, its workers and a Connect server, as processes of their own."""
