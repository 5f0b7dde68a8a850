"""The web board: pages made on the server, and small scripts of our own that keep them live."""
