"""Which mechanism to take for a setting, and why."""
