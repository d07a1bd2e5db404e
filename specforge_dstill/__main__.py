"""`python -m specforge_dstill VERB`."""

from specforge_dstill.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
