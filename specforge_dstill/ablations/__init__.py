"""Variants of a training, over several seeds, as one command."""
