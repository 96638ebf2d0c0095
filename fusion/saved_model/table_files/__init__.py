"""Tables as files of a SavedModel, which are mapped into memory when it is loaded.

    variable -- in the checkpoint           becomes  variable -- ReadTableFile(asset)

The variable stays what it was to every op that reads it; what changes is where its value comes
from. A loader of TensorFlow 2 runs the initializer of an object for it, that of a session and
TensorFlow Serving the model's init op.
"""
