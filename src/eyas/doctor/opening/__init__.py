"""Opening what may be broken: every reader says what is wrong and gives what is left. Nothing here loads torch."""
