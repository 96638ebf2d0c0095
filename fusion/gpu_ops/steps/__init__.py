"""What takes several launches: which kernels, in which order, with which memory between them.

Everything is an address; who has the memory and launches kernels is a `Device`. Nothing waits for
the GPU but `Device.words`.

These functions run as they are, over a `Device` of Python, and are compiled for the host bodies of
TensorFlow's ops (`on_host` of `fusion.gpu_ops.host.device_methods`). So they are of numbers and
named tuples of numbers, the names of kernels are literals (`device.launch_for` adds that of a
dtype), and what they call is imported by name.
"""
