"""Speeds, as ratios within one run: machines differ, and noisy ones differ from themselves."""
