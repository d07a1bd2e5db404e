"""Packaging of specforge-dstill."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(
    r'__version__ = "(.+)"', (HERE / "specforge_dstill/__init__.py").read_text(encoding="utf-8")
)[1]
README = HERE / "README.md"

# requirements-cpu.txt repeats these names for machines without a GPU; a test keeps them together.
REQUIRES = [
    "specforge>=0.2,<0.3",
    "torch",
    "transformers",
    "datasets",
    "pyarrow",
    "pydantic>=2",
    "pyyaml",
    "numpy",
    "safetensors",
    "tqdm",
    "rich",
    "matplotlib",
    "openai",
    "fsspec",
]
EXTRAS = {
    "fa": ["flash-attn"],
    "dev": [
        "pytest",
        "hypothesis",
        "ruff",
        "mypy",
        "setuptools",
        "wheel",
        "types-PyYAML",
        "types-tqdm",
        # An S3 server for the tests: moto's "server" extra would bring three times as much.
        "s3fs",
        "moto[s3]",
        "flask",
        "flask-cors",
    ],
}

setup(
    name="specforge-dstill",
    version=VERSION,
    description="Trajectory consistency distillation for one-step block-diffusion drafters",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    # The folder behind "specforge" holds train.py alone. It lands beside SpecForge's own files, so
    # that `-m specforge.train` exists; SpecForge's files are neither replaced nor removed.
    packages=[*find_packages(include=["specforge_dstill", "specforge_dstill.*"]), "specforge"],
    package_dir={"specforge": "specforge_dstill/_specforge"},
    package_data={"specforge_dstill": ["init_template.yaml", "reporting/style.css", "py.typed"]},
    install_requires=REQUIRES,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["specforge-dstill = specforge_dstill.cli:main"]},
)
