"""The execution of a query: its micro-batches, its DataFrames, its event times and its metrics."""
