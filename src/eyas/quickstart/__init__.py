"""The whole loop on a real model, in one go: `eyas quickstart`."""
