"""Recovering the wiring that a draft was trained with, from its weights and its accuracy, without what it declares."""
