"""Healthy sets, and the faults that are planted in them."""
