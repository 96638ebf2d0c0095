"""Each GPU kernel by itself, checked against NumPy, where there may be no TensorFlow.

`python -m tests.gpu_kernels`
"""

import benchmarks.gpu  # noqa: F401, which makes the kernels importable without TensorFlow
