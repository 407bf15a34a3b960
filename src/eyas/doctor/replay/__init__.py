"""Tests on real text: what the draft predicts as it is fed now, and what it would predict if it were fed otherwise."""
