"""The wiring graph and its execution plan: values computed from the registry."""
