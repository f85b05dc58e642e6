"""The runtime: components, drivers, live ports, channels, the store."""
