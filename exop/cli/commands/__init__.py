"""The commands; each module defines one family of them."""
