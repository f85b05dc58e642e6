"""The state directory: one database, and a generation file that tells which state of it is the newest."""
