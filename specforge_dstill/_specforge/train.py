"""`python -m specforge.train`: the entry that specforge-dstill adds to SpecForge."""
from specforge_dstill.train import main
if __name__ == "__main__":
    raise SystemExit(main())
