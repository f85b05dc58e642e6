"""Logs: rows under offsets, appended at the end, read from any offset: in memory (`memory`), in files (`disk`)."""
