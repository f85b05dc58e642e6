"""The benches: `python -m bench QUESTION` answers one question, side by side with a floor or a peer."""
