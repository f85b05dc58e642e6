"""Logs of rows, which are appended at the end and read from any offset: in memory (`memory`) or in files (`disk`)."""
