"""One-step block-diffusion drafters by trajectory consistency distillation, on SpecForge."""

__version__ = "0.1.0"
