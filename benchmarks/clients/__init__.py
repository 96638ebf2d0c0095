"""Models of libraries that other people wrote, with fusion and without: DeepCTR, TFRS, keras-rs.

`make clients` makes an environment of its own with them, and measures there.
"""
