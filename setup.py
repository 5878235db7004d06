"""Builds wheels that have kernels compiled for kinds of processors; all else is in pyproject.toml.

``EARSHOT_PROCESSORS`` says for which: names as ``earshot compile --processor`` takes them, or
nothing for a wheel without kernels. By default those that the building machine can do.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py


class BuildWithKernels(build_py):
    """Copies the modules, then compiles their kernels beside them."""

    def run(self) -> None:
        """Do both, where nothing is left of an earlier build."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        processors = os.environ.get("EARSHOT_PROCESSORS", "all").split()
        if processors and not self.editable_mode:
            package = Path(self.build_lib).resolve()
            into = package / "earshot" / "kernels" / "shipped"
            options = [option for each in processors for option in ("--processor", each)]
            # Beside what the build has been given to import from.
            paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
            settings = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
            run = subprocess.run(
                [sys.executable, "-m", "earshot", "compile", "--into", str(into), *options],
                env=os.environ | settings,
                check=False,
            )
            if run.returncode:
                shutil.rmtree(into, ignore_errors=True)
                print("earshot: the wheel has no kernels; they are compiled at first use")


class PlatformDistribution(Distribution):
    """Compiled kernels are for one platform and one version of Python."""

    def has_ext_modules(self) -> bool:
        """Say so in the wheel's name."""
        return True


setup(distclass=PlatformDistribution, cmdclass={"build_py": BuildWithKernels})
