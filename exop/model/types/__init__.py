"""Types as values: one description, read from an annotation, from which codecs, checks and comparisons derive."""
