"""How much Quarterdeck costs, as a multiple of a bare endpoint. See README.md beside this file."""
