"""Benches of the kernels against their Python twins; `gate.py` holds their ratios to floors."""
