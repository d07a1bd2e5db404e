"""Trained drafters as folders that SGLang, vLLM and z-lab's dflash load, and checks of those."""
