"""A run's page: one HTML file of logs and state, for those who never log in."""
