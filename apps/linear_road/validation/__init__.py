"""The rules of Linear Road in slow, plain Python, and the comparison of an output with them."""
