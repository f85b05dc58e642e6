"""Plans over several hosts or applications: the proven state machines, and what drives them."""
