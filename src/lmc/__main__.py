"""``python -m lmc`` is the ``lmc`` script."""

from lmc.cli import main

if __name__ == "__main__":
    main()
