"""Slow reference implementations of the losses, written independently from the method descriptions.

They process one example at a time in loops, without padding and dropout. Tests compare the values and gradients of
drtk's batched implementations with them.
"""
