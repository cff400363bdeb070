"""What theory has to say about a setting: which mechanism to take, and why."""
