"""One plan over several participants: all of them change, or none does."""
