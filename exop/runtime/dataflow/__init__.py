"""The path of an item: entries, in-flight items, inlets, fused calls, batches, exact counts."""
