"""git as this project uses it: its own environment, never a switch of anyone's checkout."""
