"""What a query keeps in folders: its checkpoint, its state, the files of its output."""
