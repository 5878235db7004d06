"""Builds wheels that have kernels compiled for kinds of processors; all else is in pyproject.toml.

``EARSHOT_PROCESSORS`` says for which: names as ``earshot compile --processor`` takes them, or
nothing for a wheel without kernels. By default those that the building machine can do.
"""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py


class BuildWithKernels(build_py):
    """Copies the modules, then compiles their kernels beside them."""

    def run(self) -> None:
        """Do both."""
        super().run()
        processors = os.environ.get("EARSHOT_PROCESSORS", "all").split()
        if processors and not self.editable_mode:
            into = Path(self.build_lib) / "earshot" / "kernels" / "shipped"
            into.mkdir(exist_ok=True)
            options = [option for each in processors for option in ("--processor", each)]
            subprocess.run(
                [sys.executable, "-m", "earshot", "compile", "--into", str(into), *options],
                env=os.environ | {"PYTHONPATH": str(Path(self.build_lib).resolve())},
                check=True,
            )


class PlatformDistribution(Distribution):
    """Compiled kernels are for one platform and one version of Python."""

    def has_ext_modules(self) -> bool:
        """Say so in the wheel's name."""
        return True


setup(distclass=PlatformDistribution, cmdclass={"build_py": BuildWithKernels})
