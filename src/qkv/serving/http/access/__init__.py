"""Who may use the server: keys, attempts, and the page that asks for a key."""
