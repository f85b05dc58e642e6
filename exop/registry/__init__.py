"""The service registry: services under interfaces with properties, found by filter, followed by trackers."""
