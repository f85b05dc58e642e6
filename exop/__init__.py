"""ExoP: virtualizes stream processing."""
