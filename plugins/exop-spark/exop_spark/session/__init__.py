"""The one Spark of a process: started, on this machine or behind a Connect server, shared and stopped."""
