"""The evidence: studies that compare training methods. Run one with ``python -m experiments NAME``."""
