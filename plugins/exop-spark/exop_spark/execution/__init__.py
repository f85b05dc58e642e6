"""A query while it runs: its micro-batches, its frames, its times and its figures."""
