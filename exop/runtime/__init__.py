"""What runs on this platform: components, drivers, live ports, channels, the store."""
