"""A running server, examined from outside: by what it answers and what it counts. Nothing is installed in it or changed."""
