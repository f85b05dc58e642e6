"""Values: slets, ports, channel specs, meshes, diffs, mementos, life cycles, filters. No threads, no I/O, no clock."""
