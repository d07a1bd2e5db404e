"""Packaging of specforge-dstill."""

import re
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

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

# At each start of Python: `-m specforge.train` exists, wherever SpecForge is installed.
START_UP = "import specforge_dstill._finder\n"


class BuildWithStartUp(build_py):
    """Puts a .pth file beside the packages, so that it lands in site-packages itself."""

    def run(self):
        super().run()
        if not self.editable_mode:
            (Path(self.build_lib) / "specforge_dstill.pth").write_text(START_UP, encoding="utf-8")


# An editable wheel has no room for a .pth of ours. There the folder of train.py is a part of the
# package "specforge" instead, which serves beside a SpecForge that is not editable itself.
EDITABLE = "editable_wheel" in sys.argv

setup(
    name="specforge-dstill",
    version=VERSION,
    description="Trajectory consistency distillation for one-step block-diffusion drafters",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=[
        *find_packages(include=["specforge_dstill", "specforge_dstill.*"]),
        *(["specforge"] if EDITABLE else []),
    ],
    package_dir={"specforge": "specforge_dstill/_specforge"} if EDITABLE else {},
    package_data={
        "specforge_dstill": [
            "_specforge/train.py",
            "init_template.yaml",
            "reporting/style.css",
            "py.typed",
        ]
    },
    cmdclass={"build_py": BuildWithStartUp},
    install_requires=REQUIRES,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["specforge-dstill = specforge_dstill.cli:main"]},
)
