"""The path of an item: entries, in-flight items, inlets, fusion, batches, and metrics."""
