"""What a caller can do. Every write is one transaction: its rows and its event."""
