"""The only place with SQL. Bodies take a `Tx`; its caller's scope is on every statement on a user's rows."""
