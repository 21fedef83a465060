"""The tables and figures of the paper, one file each; ``python -m experiments paper list`` names them."""
