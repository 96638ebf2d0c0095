"""Kernels run under Numba's CUDA simulator here."""

from numba.core import config

config.ENABLE_CUDASIM = 1
