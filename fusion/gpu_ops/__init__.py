"""Numba-CUDA kernels: functions of addresses and numbers, which know no TensorFlow.

They also run under Numba's CUDA simulator, where memory is the host's (`device.SIMULATED`).
"""
