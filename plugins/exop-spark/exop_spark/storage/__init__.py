"""The folders of a query: its checkpoint, its state, and the files of its output."""
